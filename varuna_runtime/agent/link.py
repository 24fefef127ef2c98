"""The one stream to the manager: hello, beats, reports out; commands in; comes back for ever.

The manager counts as gone only while this stream is down. Commands of an older manager are refused.
"""

import asyncio
import contextlib
import random
from collections.abc import Callable
from typing import TypeAlias

import grpc
import structlog

from varuna_runtime.agent import clock
from varuna_runtime.agent.outbox import Outbox
from varuna_runtime.wire.v1 import agent_pb2, agent_pb2_grpc

_WELCOME_S = 10.0
_STEPS_EVERY_S = 0.2
_GOODBYE_S = 1.0
_BACK_OFF_S = (0.1, 5.0)
CHANNEL_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),  # a fresh attempt must not inherit the last one's back-off
    ("grpc.max_receive_message_length", 16 << 20),
)
_log = structlog.get_logger("varuna.agent")
Dial: TypeAlias = Callable[[], grpc.aio.Channel]
Stream: TypeAlias = "grpc.aio.StreamStreamCall[agent_pb2.AgentMessage, agent_pb2.ManagerMessage]"


class ManagerLink:
    """`dial` opens a channel to `address`; `hello` and `beat` make their message when it is due.

    `obey` hears everything but Welcome and Ack.
    """

    def __init__(
        self,
        address: str,
        dial: Dial,
        outbox: Outbox,
        *,
        hello: Callable[[], agent_pb2.Hello],
        beat: Callable[[], agent_pb2.Beat],
        obey: Callable[[agent_pb2.ManagerMessage], None],
    ) -> None:
        self._address = address
        self._dial = dial
        self._outbox = outbox
        self._hello = hello
        self._beat = beat
        self._obey = obey
        self._epoch = 0
        self._wake = asyncio.Event()
        self._went_down = asyncio.Event()  # set whenever a welcomed stream ends
        self._goodbye: str | None = None
        self._welcome = agent_pb2.Welcome(beat_s=0.3, lease_s=3.0, stop_on_disconnect_after_s=3600.0)
        self._down_since_s: float | None = clock.now_s()

    @property
    def is_overdue(self) -> bool:
        """True when the manager has been away for longer than workers are kept."""
        if self._down_since_s is None:
            return False
        return clock.now_s() - self._down_since_s > self._welcome.stop_on_disconnect_after_s

    @property
    def is_up(self) -> bool:
        """True between Welcome and the stream's end."""
        return self._down_since_s is None

    def wake(self) -> None:
        """There is something to send."""
        self._wake.set()

    async def run(self) -> None:
        """Connect, serve, and connect again, until cancelled or a goodbye was said."""
        attempt = 0
        while True:
            was_up = await self._connect_once()
            if self._goodbye is not None and was_up:
                return
            attempt = 0 if was_up else attempt + 1
            first, cap = _BACK_OFF_S
            await asyncio.sleep(random.uniform(0.5, 1.0) * min(cap, first * 2**attempt))

    async def say_goodbye(self, reason: str, within_s: float) -> None:
        """Send what is kept, then Goodbye; gives up after `within_s`."""
        self._goodbye = reason
        self.wake()
        if self.is_up:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(within_s):
                    await self._went_down.wait()

    async def _connect_once(self) -> bool:
        """Return whether the manager welcomed us."""
        was_up = False
        try:
            async with self._dial() as channel:
                call: Stream = agent_pb2_grpc.AgentLinkStub(channel).Connect()  # type: ignore[no-untyped-call]
                await call.write(agent_pb2.AgentMessage(hello=self._hello()))
                await self._await_welcome(call)
                was_up, self._down_since_s = True, None
                self._went_down.clear()
                _log.info("connected", manager=self._address, epoch=self._epoch)
                await self._serve(call)
        except (grpc.aio.AioRpcError, ConnectionError, TimeoutError, asyncio.InvalidStateError) as err:
            _log.info("disconnected", manager=self._address, was_up=was_up, reason=_reason(err))
        finally:
            if self._down_since_s is None:
                self._down_since_s = clock.now_s()
                self._went_down.set()
        return was_up

    async def _await_welcome(self, call: Stream) -> None:
        async with asyncio.timeout(_WELCOME_S):
            message = await _next(call)
        self._check_epoch(message)
        if message.HasField("fenced"):
            self._obey(message)
            raise ConnectionError(f"fenced: {message.fenced.reason}")
        if not message.HasField("welcome"):
            raise ConnectionError("the manager's first message is not a Welcome")
        self._welcome = message.welcome

    def _check_epoch(self, message: agent_pb2.ManagerMessage) -> None:
        if message.epoch < self._epoch:
            raise ConnectionError(f"a manager of epoch {message.epoch} is older than epoch {self._epoch}")
        self._epoch = message.epoch

    async def _serve(self, call: Stream) -> None:
        reading = asyncio.ensure_future(self._read(call))
        writing = asyncio.ensure_future(self._write(call))
        try:
            done, _ = await asyncio.wait({reading, writing}, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
            if self._goodbye is not None:
                await asyncio.wait({reading}, timeout=_GOODBYE_S)
        finally:
            reading.cancel()
            writing.cancel()
            await asyncio.gather(reading, writing, return_exceptions=True)
            call.cancel()

    async def _read(self, call: Stream) -> None:
        while True:
            message = await _next(call)
            self._check_epoch(message)
            if message.HasField("ack"):
                self._outbox.acknowledge(message.ack.seq)
                self.wake()
            else:
                self._obey(message)

    async def _write(self, call: Stream) -> None:
        """Beats at their pace, reports at once, steps gathered; a goodbye after all is acknowledged."""
        sent, beat_due_s, steps_due_s = 0, 0.0, 0.0
        while True:
            now_s = clock.now_s()
            if now_s >= steps_due_s:
                self._outbox.flush_steps()
                steps_due_s = now_s + _STEPS_EVERY_S
            for message in self._outbox.after(sent):
                await call.write(message)
                sent = message.seq
            if now_s >= beat_due_s:
                await call.write(agent_pb2.AgentMessage(beat=self._beat()))
                beat_due_s = now_s + self._welcome.beat_s
            if self._goodbye is not None and self._outbox.is_empty:
                await call.write(agent_pb2.AgentMessage(goodbye=agent_pb2.Goodbye(reason=self._goodbye)))
                await call.done_writing()
                return
            await self._pause(min(beat_due_s, steps_due_s) - clock.now_s())

    async def _pause(self, at_most_s: float) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, at_most_s)):
                await self._wake.wait()
        self._wake.clear()


async def _next(call: Stream) -> agent_pb2.ManagerMessage:
    message = await call.read()
    if not isinstance(message, agent_pb2.ManagerMessage):  # the end of the stream
        raise ConnectionError(f"the manager ended the stream: {await call.details()}")
    return message


def _reason(err: BaseException) -> str:
    if isinstance(err, grpc.aio.AioRpcError):
        return f"{err.code().name}: {err.details()}"
    return str(err) or type(err).__name__
