"""Calls to one worker over its Unix socket, and the stream of what it says."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from pathlib import Path

import grpc

from varuna_runtime.agent import codec
from varuna_runtime.agent import events as e
from varuna_runtime.agent import records as r
from varuna_runtime.spec.copies import Version
from varuna_runtime.wire.v1 import worker_pb2, worker_pb2_grpc

_PREPARE_S = 600.0  # loading a state may take long; the manager's own deadline is shorter
_CALL_S = 10.0
_RETRY_S = 0.1
_LOOK_S = 0.005
_LAST_WORDS_S = 2.0
_OPTIONS = (
    ("grpc.enable_http_proxy", 0),
    ("grpc.use_local_subchannel_pool", 1),
    ("grpc.initial_reconnect_backoff_ms", 50),
    ("grpc.min_reconnect_backoff_ms", 50),
    ("grpc.max_reconnect_backoff_ms", 500),
    ("grpc.max_receive_message_length", 64 << 20),
)


class WorkerClient:
    """One rank's worker. Everything it says becomes an event."""

    def __init__(self, key: r.RankKey, socket_path: Path, tell: Callable[[e.Event], None]) -> None:
        self._key = key
        self._tell = tell
        self._socket_path = socket_path
        self._channel = grpc.aio.insecure_channel(f"unix:{socket_path}", options=_OPTIONS)
        self._stub = worker_pb2_grpc.WorkerStub(self._channel)  # type: ignore[no-untyped-call]
        self._is_dead = False
        self._is_heard = False  # the stream is open and may still hold last words
        self._listening = asyncio.ensure_future(self._listen())

    async def prepare(self, order: r.StartOrder, host: str, vault_socket: str) -> None:
        """Hand over the plan; the reply is the rank's Prepared report."""
        request = codec.prepare_request(self._key, order, host, vault_socket)

        async def call() -> None:
            if not await self._is_bound():
                return
            reply = await self._stub.Prepare(request, timeout=_PREPARE_S, wait_for_ready=True)
            self._tell(e.RankReported(key=self._key, report=codec.prepared(reply)))

        await self._guarded("Prepare", call())

    async def activate(self, endpoints: tuple[r.Endpoint, ...], resume: Version | None) -> None:
        """Let the rank join its process group, with the state of `resume`."""
        request = codec.activate_request(self._key.generation, endpoints, resume)
        await self._guarded("Activate", self._stub.Activate(request, timeout=_CALL_S))

    async def drain(self, within_s: float, *, persist: bool) -> None:
        """Ask for an agreed stop, at a durable step if `persist`."""
        request = worker_pb2.DrainRequest(generation=self._key.generation, within_s=within_s, persist=persist)
        await self._guarded("Drain", self._stub.Drain(request, timeout=_CALL_S))

    async def abort(self) -> None:
        """Ask it to end; it has no time to answer, and if it does not hear this it is killed."""
        request = worker_pb2.AbortRequest(generation=self._key.generation)
        with contextlib.suppress(grpc.aio.AioRpcError):
            await self._stub.Abort(request, timeout=_CALL_S)

    async def close(self) -> None:
        """The process is dead: hear what it still said, then let go."""
        self._is_dead = True
        if self._is_heard:
            await asyncio.wait({self._listening}, timeout=_LAST_WORDS_S)
        self._listening.cancel()
        await asyncio.gather(self._listening, return_exceptions=True)
        await self._channel.close(None)

    async def _guarded(self, name: str, call: Awaitable[object]) -> None:
        try:
            await call
        except grpc.aio.AioRpcError as err:
            message = f"{name} failed: {err.code().name}: {err.details()}"
            self._tell(e.CallFailed(key=self._key, message=message))

    async def _is_bound(self) -> bool:
        """Wait for the worker's socket; False if the worker died instead.

        Dialling before there is something to dial would cost the channel's back-off.
        """
        while not self._is_dead and not self._socket_path.exists():  # noqa: ASYNC110  no event: others bind it
            await asyncio.sleep(_LOOK_S)
        return not self._is_dead

    async def _listen(self) -> None:
        request = worker_pb2.ProgressRequest(generation=self._key.generation)
        while await self._is_bound():
            try:
                async for message in self._stub.Progress(request, wait_for_ready=True):
                    self._is_heard = True
                    event = codec.progress(self._key, message)
                    if event is not None:
                        self._tell(event)
            except grpc.aio.AioRpcError:  # not up yet, or dead: its launcher knows
                self._is_heard = False
                await asyncio.sleep(_RETRY_S)
            else:
                return
