"""What is announced for this node, and what of it is news. Pure: the time is passed in.

A cloud may announce several things at once; the manager is told the one that is due first.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

from varuna_runtime.agent.notices.changes import Cancelled, Change, Hint, Notice

_STARTED_AND_GONE_S = 300.0  # a node that is still here so long after its end began will stay


@dataclass(frozen=True, slots=True, kw_only=True)
class Announcement:
    """One thing that a cloud says of this node, as of now."""

    id: str
    detail: str
    left_s: float = 0.0  # by the cloud's clock; negative once past
    most_s: float = 3600.0  # a longer wait than this only comes of clocks that differ
    stamp: str = ""  # the deadline as the cloud wrote it; another one moves it
    is_hint: bool = False
    is_urgent: bool = False  # the cloud tells no time, `left_s` is our guess
    is_started: bool = False  # cannot be taken back any more
    believed_s: float = math.inf  # so long past its time it is a leftover


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    said: Announcement
    due_s: float  # monotonic
    is_present: bool = True

    def is_believed(self, now_s: float) -> bool:
        limit_s = self.said.believed_s if self.is_present else _STARTED_AND_GONE_S
        return now_s - self.due_s <= limit_s


class Book:
    """Compares what is announced now with what was told before."""

    def __init__(self) -> None:
        self._entries: dict[str, _Entry] = {}
        self._hinted: set[str] = set()
        self._told: _Entry | None = None
        self._is_new = True

    def update(self, present: Iterable[Announcement], now_s: float) -> tuple[Change, ...]:
        """Return what is news when exactly `present` is announced; `now_s` is monotonic seconds."""
        seen = {said.id: said for said in present}
        hints = [said for _, said in sorted(seen.items()) if said.is_hint and said.id not in self._hinted]
        self._hinted.update(said.id for said in hints)
        kept = {id: self._entry(said, now_s) for id, said in sorted(seen.items()) if not said.is_hint}
        for id, entry in self._entries.items():
            if id not in kept and entry.said.is_started:
                kept[id] = _Entry(said=entry.said, due_s=entry.due_s, is_present=False)
        self._entries = {
            id: entry for id, entry in kept.items() if entry.is_present or entry.is_believed(now_s)
        }
        self._is_new = False
        return (*(Hint(detail=said.detail) for said in hints), *self._news(now_s))

    def _entry(self, said: Announcement, now_s: float) -> _Entry:
        known = self._entries.get(said.id)
        if known is not None and known.said.stamp == said.stamp:
            return _Entry(said=said, due_s=known.due_s)
        left_s = min(said.left_s, said.most_s)
        # What comes up before our eyes is no leftover, however far its time seems past.
        return _Entry(said=said, due_s=now_s + (left_s if self._is_new else max(0.0, left_s)))

    def _news(self, now_s: float) -> tuple[Change, ...]:
        believed = [entry for entry in self._entries.values() if entry.is_believed(now_s)]
        first = min(believed, key=lambda entry: (entry.due_s, entry.said.id), default=None)
        told, self._told = self._told, first
        if first is None:
            return () if told is None else (Cancelled(detail=f"no longer announced: {told.said.detail}"),)
        if told is not None and (told.said.id, told.due_s) == (first.said.id, first.due_s):
            return ()
        said, left_s = first.said, max(0.0, first.due_s - now_s)
        return (Notice(seconds_left=left_s, detail=said.detail, id=said.id, is_urgent=said.is_urgent),)
