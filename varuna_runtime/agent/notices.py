"""Where an agent learns that its node will vanish."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import structlog

from varuna_runtime.agent import clock

_EVERY_S = 0.2
_log = structlog.get_logger("varuna.agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """The node vanishes in `seconds_left`; a cancelled one never mind."""

    seconds_left: float
    is_cancelled: bool = False


class NoticeSource(Protocol):
    """Tells of notices; the local pool has a file, clouds have metadata services."""

    name: str
    ends_node: bool  # the source only announces; true where the agent has to play the cloud's part too

    def notices(self) -> AsyncIterator[Notice]:
        """Yield each change, for ever."""
        ...


class FileNotices:
    """`notice.json` holds {"deadline_unix": seconds}; removing the file cancels the notice."""

    name = "file"
    ends_node = True

    def __init__(self, path: Path) -> None:
        self._path = path
        self._seen = b""
        self._deadline: float | None = None

    async def notices(self) -> AsyncIterator[Notice]:
        """Yield each change of the file, for ever."""
        while True:
            notice = self.poll(clock.unix_s())
            if notice is not None:
                yield notice
            await asyncio.sleep(_EVERY_S)

    def poll(self, unix_s: float) -> Notice | None:
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
            return Notice(seconds_left=0.0, is_cancelled=True)
        return Notice(seconds_left=max(0.0, deadline - unix_s))

    def _parsed(self, text: bytes) -> float | None:
        """Keep the old deadline when the new text makes no sense."""
        try:
            deadline = float(json.loads(text)["deadline_unix"])
            if not math.isfinite(deadline):
                raise ValueError(f"deadline_unix is {deadline}")
            return deadline
        except (ValueError, TypeError, KeyError) as err:
            _log.warning("notice file ignored", path=str(self._path), reason=str(err))
            return self._deadline
