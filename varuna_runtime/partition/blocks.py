"""Where a traced forward may be cut: between its repeated blocks, and around large parts beside them.

A pure function of the graph and of the modules it was traced in; nothing is measured.
"""

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median

ENOUGH_BLOCKS = 8  # with fewer, blocks that consist of blocks are looked into
FEW_UNITS = 4  # with fewer, and no blocks, modules are looked into
SHARE_OF_BLOCK = 0.25  # a part beside the blocks from this share of the median block on is a segment
SHARE_OF_MODEL = 1 / 16  # the same in a model without blocks, of the whole
MAX_SEGMENTS = 256

Path = tuple[
    tuple[str, str], ...
]  # (name of the call, class) of the modules around an operation, outermost first


Shares = tuple[float, float]  # of the model's parameter bytes, and of the bytes that forward makes
Weights = Callable[[int, int], Shares]  # of operations start..stop-1


@dataclass(slots=True)
class Call:
    """Operations start..stop-1, which one call of a module ran, or which ran between two calls."""

    name: str
    kind: str  # full name of the class; empty between calls
    start: int
    stop: int
    inner: list["Call"] = field(default_factory=list)

    @property
    def is_composite(self) -> bool:
        """True if it called modules itself."""
        return any(call.kind for call in self.inner)


@dataclass(frozen=True, slots=True, kw_only=True)
class Cut:
    """A segment's first operation and its name."""

    start: int
    name: str


def cuts(paths: Sequence[Path], weights: Weights, live_bytes: Sequence[int | None]) -> tuple[Cut, ...]:
    """Return the segments of a model whose operations were traced in these modules; the first starts at 0.

    `live_bytes[i]` would cross a cut before operation i; None where there can be none.
    """
    units, blocks = _units(calls(paths), weights)
    large = _large(units, blocks, weights)
    found = [Cut(start=0, name=large[0].name if large else "")]
    for before, after in pairwise(large):
        places = [i for i in range(max(before.stop, 1), after.start + 1) if live_bytes[i] is not None]
        if places:
            found.append(Cut(start=min(places, key=lambda i: (live_bytes[i], i)), name=after.name))
    return _thinned(found)


def calls(paths: Sequence[Path]) -> Call:
    """Return the tree of calls."""
    return _call("", "", paths, 0, len(paths), 0)


def _call(name: str, kind: str, paths: Sequence[Path], start: int, stop: int, depth: int) -> Call:
    made = Call(name, kind, start, stop)
    at = start
    while at < stop:
        key = paths[at][depth] if len(paths[at]) > depth else None
        end = at + 1
        while end < stop and (paths[end][depth] if len(paths[end]) > depth else None) == key:
            end += 1
        if key is None:
            made.inner.append(Call(name, "", at, end))
        else:
            made.inner.append(_call(*key, paths, at, end, depth + 1))
        at = end
    return made


def _units(root: Call, weights: Weights) -> tuple[list[Call], set[int]]:
    """Return the runs of operations that stay together, in order, and the ids of those that are blocks."""
    units, blocks = [root], set[int]()
    while len(blocks) < ENOUGH_BLOCKS:
        chosen = {id(unit) for unit in units if _holds_blocks(unit, weights)}
        if not chosen and (blocks or _num_weighty(units, weights) >= FEW_UNITS):
            break
        chosen = chosen or {id(unit) for unit in units if unit.is_composite}
        if not chosen:
            break
        units, blocks = _opened(units, blocks, chosen, weights)
    return units, blocks


def _opened(
    units: list[Call], blocks: set[int], chosen: set[int], weights: Weights
) -> tuple[list[Call], set[int]]:
    opened: list[Call] = []
    left = set(blocks)
    for unit in units:
        if id(unit) not in chosen:
            opened.append(unit)
            continue
        opened.extend(unit.inner)
        left.discard(id(unit))
        left |= {id(call) for call in _repeated(unit, weights)}
    return opened, left


def _holds_blocks(call: Call, weights: Weights) -> bool:
    return bool(_repeated(call, weights)) or any(_holds_blocks(inner, weights) for inner in call.inner)


def _repeated(call: Call, weights: Weights) -> list[Call]:
    """Return the blocks a module calls: composite ones of a class it calls twice, if they are most of it."""
    composite = [inner for inner in call.inner if inner.kind and inner.is_composite]
    counts = Counter(inner.kind for inner in composite)
    found = [inner for inner in composite if counts[inner.kind] > 1]
    weight = sum(max(weights(inner.start, inner.stop)) for inner in found)
    return found if weight >= 0.5 * max(weights(call.start, call.stop)) else []


def _num_weighty(units: Sequence[Call], weights: Weights) -> int:
    return sum(max(weights(unit.start, unit.stop)) >= SHARE_OF_MODEL for unit in units)


def _large(units: Sequence[Call], blocks: set[int], weights: Weights) -> list[Call]:
    of_blocks = [weights(unit.start, unit.stop) for unit in units if id(unit) in blocks]
    least = [SHARE_OF_BLOCK * median(shares) for shares in zip(*of_blocks, strict=True)]
    return [u for u in units if id(u) in blocks or _is_large(u, weights, least or [SHARE_OF_MODEL] * 2)]


def _is_large(unit: Call, weights: Weights, least: Sequence[float]) -> bool:
    """Tell if a unit deserves a segment of its own; what runs between calls only for its parameters."""
    shares = weights(unit.start, unit.stop)[: 2 if unit.kind else 1]
    return any(share >= wanted > 0 for share, wanted in zip(shares, least, strict=False))


def _thinned(found: list[Cut]) -> tuple[Cut, ...]:
    if len(found) <= MAX_SEGMENTS:
        return tuple(found)
    return tuple(found[i * len(found) // MAX_SEGMENTS] for i in range(MAX_SEGMENTS))
