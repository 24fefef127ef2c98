"""Recorded spot pools: text of a recording -> when nodes came and went. Reads no file."""

import calendar
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from varuna_runtime.spec.errors import InvalidInput

_EVENT = re.compile(r"(?P<ms>\d+)\s*,\s*(?P<what>add|remove)\s*,\s*(?P<node>[A-Za-z0-9][A-Za-z0-9._-]{0,62})")
_COUNT = re.compile(
    r"(?P<year>\d{4})-(?P<month>\d\d)-(?P<day>\d\d)\s*,\s*(?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d)\s*,\s*(?P<n>\d+)"
)
_MOST_NODES = 100_000
_WANTED = "`milliseconds,add|remove,node` or `YYYY-MM-DD, HH:MM:SS, running count`"


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Nodes that came and went at one moment: losses that share it are correlated."""

    at_s: float  # since the begin of the recording
    joined: tuple[str, ...] = ()
    left: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Changes by time. A name is present at most once at a time; what is left at the end stays."""

    changes: tuple[Change, ...]
    length_s: float

    def offered(self, at_s: float) -> tuple[str, ...]:
        """Return the nodes present at a time, the longest present first."""
        present: dict[str, None] = {}
        for change in self.changes:
            if change.at_s > at_s:
                break
            _apply(present, change)
        return tuple(present)

    def leaves_at(self, node: str, after_s: float) -> float | None:
        """Return when `node` leaves for the first time after a moment; None: it stays."""
        return next((c.at_s for c in self.changes if c.at_s > after_s and node in c.left), None)

    def next_change(self, after_s: float) -> float | None:
        """Return the time of the first change after a moment; None: nothing happens any more."""
        return next((c.at_s for c in self.changes if c.at_s > after_s), None)

    def between(self, start_s: float, end_s: float) -> "Recording":
        """Return the part from `start_s` to `end_s`, its times counted from `start_s`."""
        if not 0 <= start_s < end_s:
            raise InvalidInput(
                f"part of a recording: seen {start_s:g} s to {end_s:g} s, wanted 0 <= start < end"
            )
        first = Change(at_s=0.0, joined=self.offered(start_s))
        later = (
            Change(at_s=c.at_s - start_s, joined=c.joined, left=c.left)
            for c in self.changes
            if start_s < c.at_s < end_s
        )
        return Recording(changes=(first, *later), length_s=min(end_s, max(self.length_s, start_s)) - start_s)


def parse(text: str, *, source: str) -> Recording:
    """Return the recording in a text of either format; InvalidInput names `source` and the line.

    Counts have no names, so nodes are named in order of appearance; of a falling count, those leave that
    a fixed shuffle of the numbers puts first, so that neither old nor young nodes are favoured.
    """
    lines = [_Line(source, number, line.strip()) for number, line in enumerate(text.splitlines(), start=1)]
    lines = [line for line in lines if line.text]
    if not lines:
        raise InvalidInput(f"{source}: no lines; wanted a recording, each line {_WANTED}")
    if _EVENT.fullmatch(lines[0].text):
        return _from_events(lines)
    if _COUNT.fullmatch(lines[0].text):
        return _from_counts(lines)
    raise lines[0].refused(_WANTED)


@dataclass(frozen=True, slots=True)
class _Line:
    source: str
    number: int
    text: str

    def refused(self, wanted: str) -> InvalidInput:
        return InvalidInput(f"{self.source}: line {self.number}: seen {self.text[:80]!r}, wanted {wanted}")


def _apply(present: dict[str, None], change: Change) -> None:
    for node in change.left:
        del present[node]
    present.update(dict.fromkeys(change.joined))


def _from_events(lines: Sequence[_Line]) -> Recording:
    changes = tuple(_moments(_checked_events(lines)))
    return Recording(changes=changes, length_s=changes[-1].at_s)


@dataclass(frozen=True, slots=True)
class _Event:
    at_s: float
    is_add: bool
    node: str


def _checked_events(lines: Sequence[_Line]) -> Iterator[_Event]:
    """Yield the events; a node comes only while absent, goes only while present, once in a moment."""
    present: set[str] = set()
    moment, at_s = set[str](), 0.0
    for line in lines:
        found = _EVENT.fullmatch(line.text)
        if found is None:
            raise line.refused("`milliseconds,add|remove,node` as in the lines before")
        event = _Event(int(found["ms"]) / 1000, found["what"] == "add", found["node"])
        if event.at_s < at_s:
            raise line.refused(f"a time of at least {at_s * 1000:.0f}, that of the line before")
        if event.at_s > at_s:
            moment, at_s = set(), event.at_s
        if event.node in moment:
            raise line.refused(f"one change of {event.node} at that time")
        if event.is_add == (event.node in present):
            raise line.refused(f"{event.node} to be {'absent' if event.is_add else 'present'} before")
        moment.add(event.node)
        present ^= {event.node}
        yield event


def _moments(events: Iterator[_Event]) -> Iterator[Change]:
    for at_s, group in groupby(events, key=lambda event: event.at_s):
        together = tuple(group)
        yield Change(
            at_s=at_s,
            joined=tuple(e.node for e in together if e.is_add),
            left=tuple(e.node for e in together if not e.is_add),
        )


@dataclass(frozen=True, slots=True)
class _Sample:
    unix_s: int
    count: int


def _from_counts(lines: Sequence[_Line]) -> Recording:
    samples = _newest_word([_sample(line) for line in lines])
    start_s = samples[0].unix_s
    changes = tuple(_named(samples, start_s))
    return Recording(changes=changes, length_s=float(samples[-1].unix_s - start_s))


def _sample(line: _Line) -> _Sample:
    found = _COUNT.fullmatch(line.text)
    if found is None:
        raise line.refused("`YYYY-MM-DD, HH:MM:SS, running count` as in the lines before")
    year, month, day, h, m, s, count = (int(text) for text in found.groups())
    if not (year >= 1970 and 1 <= month <= 12 and 1 <= day <= calendar.monthrange(year, month)[1]):
        raise line.refused("a date that exists")
    if not (h < 24 and m < 60 and s < 60):
        raise line.refused("a time of day")
    if count > _MOST_NODES:
        raise line.refused(f"a count of at most {_MOST_NODES}")
    return _Sample(calendar.timegm((year, month, day, h, m, s)), count)


def _newest_word(samples: Sequence[_Sample]) -> list[_Sample]:
    """Return the samples by time: recorders write a count ahead and take it back in later lines."""
    kept: list[_Sample] = []
    for sample in samples:
        while kept and kept[-1].unix_s >= sample.unix_s:
            kept.pop()
        kept.append(sample)
    return kept


def _named(samples: Sequence[_Sample], start_s: int) -> Iterator[Change]:
    alive: list[int] = []
    given = 0
    for sample in samples:
        at_s, missing = float(sample.unix_s - start_s), sample.count - len(alive)
        if missing > 0 or at_s == 0:
            joined = range(given + 1, given + 1 + missing)
            alive.extend(joined)
            given += missing
            yield Change(at_s=at_s, joined=tuple(f"node{number}" for number in joined))
        elif missing < 0:
            order = sorted(alive, key=_shuffled)
            alive = sorted(order[-missing:])
            yield Change(at_s=at_s, left=tuple(f"node{number}" for number in order[:-missing]))


def _shuffled(number: int) -> tuple[int, int]:
    return (number * 2654435761 % 2**32, number)
