"""Carries what the source of notices says to the manager, and back that the node is empty."""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import aclosing
from typing import assert_never

import structlog

from varuna_runtime.agent.notices.changes import (
    Cancelled,
    Change,
    HealthChanged,
    Hint,
    Notice,
    NoticeSource,
)
from varuna_runtime.wire.v1 import agent_pb2

_LOOK_S = 0.1
_MOST_CHARACTERS = 300
_log = structlog.get_logger("varuna.agent")
Report = Callable[[agent_pb2.AgentMessage], None]
"""Numbers a message and keeps it until it is acknowledged."""
IsHandedOver = Callable[[int], bool]
"""(seq of a report) -> the manager has it, and no process of a job is left on this node."""


class Watch:
    """One incarnation's; `vanish` ends this node as a cloud would, for sources that only announce."""

    def __init__(
        self,
        source: NoticeSource,
        node: str,
        *,
        report: Report,
        is_handed_over: IsHandedOver,
        vanish: Callable[[], None],
    ) -> None:
        self._source = source
        self._node = node
        self._report = report
        self._is_handed_over = is_handed_over
        self._vanish = vanish
        self._timer: asyncio.TimerHandle | None = None
        self._settled = asyncio.Event()
        self._is_leaving = False
        self.state = "starting"

    async def run(self) -> None:
        """Watch for ever."""
        acknowledging: asyncio.Task[None] | None = None
        try:
            async with aclosing(self._source.changes()) as changes:
                async for change in changes:
                    if acknowledging is not None and isinstance(change, Notice | Cancelled):
                        acknowledging.cancel()
                    seq = self._told(change)
                    if isinstance(change, Notice):
                        acknowledging = asyncio.create_task(self._acknowledge(change, seq))
        finally:
            if acknowledging is not None:
                acknowledging.cancel()
                await asyncio.gather(acknowledging, return_exceptions=True)

    async def settle(self, within_s: float) -> None:
        """Return once the source is known to answer or not, at the latest after `within_s`.

        `state` is what Hello says then; from here on a change of it is reported.
        """
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._settled.wait()
        self._settled.set()

    async def leave(self, within_s: float, reason: str) -> None:
        """Announce the node's end by ourselves; returns when it is empty, at the latest after `within_s`.

        From then on the source has no say: what it takes back, we do not.
        """
        self._is_leaving = True
        own = Notice(seconds_left=within_s, detail=reason, is_urgent=True)
        seq = self._send_notice(own, "agent")
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(within_s):
                await self._handed_over(seq)

    def _told(self, change: Change) -> int:
        """Tell the manager; returns the seq of the report, 0 if there is none."""
        match change:
            case HealthChanged():
                self._become(change.state)
                return 0
            case Hint():
                _log.info("hint", detail=change.detail)
                body = agent_pb2.NoticeReport(is_hint=True, detail=fit(change.detail))
                return self._send(body, self._source.name)
            case Notice():
                self._time(change.seconds_left)
                if self._is_leaving:
                    return 0
                return self._send_notice(change, self._source.name)
            case Cancelled():
                self._time(None)
                _log.info("notice cancelled", detail=change.detail)
                if self._is_leaving:
                    return 0
                body = agent_pb2.NoticeReport(cancelled=True, detail=fit(change.detail))
                return self._send(body, self._source.name)
            case _:
                assert_never(change)

    def _become(self, state: str) -> None:
        self.state = fit(state)
        if self._settled.is_set():
            self._report(agent_pb2.AgentMessage(notices=agent_pb2.NoticesHealth(state=self.state)))
        self._settled.set()

    def _time(self, seconds_left: float | None) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._source.ends_node and seconds_left is not None:
            self._timer = asyncio.get_running_loop().call_later(seconds_left, self._vanish)

    def _send_notice(self, notice: Notice, source: str) -> int:
        _log.info("notice", seconds_left=notice.seconds_left, source=source, detail=notice.detail)
        body = agent_pb2.NoticeReport(
            seconds_left=notice.seconds_left, detail=fit(notice.detail), is_urgent=notice.is_urgent
        )
        return self._send(body, source)

    def _send(self, body: agent_pb2.NoticeReport, source: str) -> int:
        body.node, body.source = self._node, source
        message = agent_pb2.AgentMessage(notice=body)
        self._report(message)
        return message.seq

    async def _acknowledge(self, notice: Notice, seq: int) -> None:
        await self._handed_over(seq)
        await self._source.acknowledge(notice)

    async def _handed_over(self, seq: int) -> None:
        while True:
            if self._is_handed_over(seq):
                return
            await asyncio.sleep(_LOOK_S)


def fit(text: str) -> str:
    """Return what a cloud wrote as one printable, bounded line; protobuf refuses half a character."""
    return "".join(c if c.isprintable() else "?" for c in text[:_MOST_CHARACTERS])
