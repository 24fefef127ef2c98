"""Notices of the local pool: a file that others write."""

import asyncio
import json
import math
from collections.abc import AsyncGenerator
from pathlib import Path

import structlog

from varuna_runtime.agent import clock
from varuna_runtime.agent.notices.changes import Cancelled, Change, HealthChanged, Notice

_EVERY_S = 0.2
_log = structlog.get_logger("varuna.agent")


class FileNotices:
    """`notice.json` holds {"deadline_unix": seconds}; removing the file cancels the notice."""

    name = "file"
    ends_node = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = b""
        self._deadline: float | None = None

    async def changes(self) -> AsyncGenerator[Change, None]:
        """Yield each change of the file, for ever."""
        yield HealthChanged(state=self.name)
        while True:
            change = self.poll(clock.unix_s())
            if change is not None:
                yield change
            await asyncio.sleep(_EVERY_S)

    async def acknowledge(self, notice: Notice) -> None:
        """Do nothing: the deadline is kept."""

    def poll(self, unix_s: float) -> Notice | Cancelled | None:
        """Return the change since the last look; an unreadable file is logged once and otherwise ignored."""
        try:
            text = self._path.read_bytes()
        except FileNotFoundError:
            text = b""
        if text == self._seen:
            return None
        self._seen = text
        deadline = self._parsed(text) if text else None
        if deadline == self._deadline:
            return None
        self._deadline = deadline
        if deadline is None:
            return Cancelled()
        return Notice(seconds_left=max(0.0, deadline - unix_s))

    def _parsed(self, text: bytes) -> float | None:
        """Keep the old deadline when the new text makes no sense."""
        try:
            deadline = float(json.loads(text)["deadline_unix"])
            if not math.isfinite(deadline):
                raise ValueError(f"deadline_unix is {deadline}")
            return deadline
        except (ValueError, TypeError, KeyError, OverflowError, RecursionError) as err:
            _log.warning("notice file ignored", path=str(self._path), reason=str(err))
            return self._deadline
