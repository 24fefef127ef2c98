"""Which fault is done in which phase; hands of them dealt by a seed, and the table of what was done. Pure."""

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """What is done."""

    SIGKILL = "SIGKILL"
    SIGSTOP = "SIGSTOP"  # and SIGCONT after a while
    SIGTERM = "SIGTERM"
    EXIT = "exit(1)"
    SEGFAULT = "segfault"
    DROPPED_TCP = "dropped TCP"
    DISK = "slow/full disk"
    STORE = "store errors"
    CLOCK = "clock skew"


class Phase(StrEnum):
    """When it is done."""

    IMPORT = "import"
    PLAN = "plan"
    LOAD = "load"
    STEP = "step"
    SAVE = "save"
    RECOVER = "recover"  # from the fault before it


class Site(StrEnum):
    """What keeps the checkpoints of a pool."""

    DISK = "disk"  # a small file system of its own
    S3 = "s3"  # a server behind a proxy that breaks calls


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One place of the matrix."""

    kind: Kind
    phase: Phase


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A fault that was done."""

    kind: Kind
    phase: Phase
    target: str
    at_s: float  # Unix


_ONLY = {Kind.DISK: Site.DISK, Kind.STORE: Site.S3}
# Nothing that runs while a plan is made can be told to exit: no code of the user does.
_IMPOSSIBLE = {Cell(kind=Kind.EXIT, phase=Phase.PLAN)}
CELLS = tuple(cell for k in Kind for p in Phase if (cell := Cell(kind=k, phase=p)) not in _IMPOSSIBLE)


def cells_of(site: Site) -> tuple[Cell, ...]:
    """Return what can be done to a pool of that kind."""
    return tuple(cell for cell in CELLS if _ONLY.get(cell.kind, site) is site)


def hand(seed: int, site: Site, size: int) -> tuple[Cell, ...]:
    """Return `size` cells for a seed; four consecutive seeds of a site have every cell of it.

    What only this site has comes in full to each of its seeds. A small hand is drawn from all of it.
    """
    cells = cells_of(site)
    drawn = random.Random(seed)
    if size < len(cells) // 2:
        return tuple(drawn.sample(cells, size))
    own = [cell for cell in cells if cell.kind in _ONLY]
    shared = [cell for cell in cells if cell.kind not in _ONLY]
    start = seed // 2 * (size - len(own)) % len(shared)
    dealt = (own + shared[start:] + shared[:start] + shared)[:size]
    drawn.shuffle(dealt)
    return tuple(dealt)


def table(done: Iterable[Done]) -> str:
    """Return how often what was done when."""
    counts = Counter((one.kind, one.phase) for one in done)
    rows = [["", *Phase, "all"]]
    for kind in Kind:
        row = [_shown(kind, phase, counts[kind, phase]) for phase in Phase]
        rows.append([str(kind), *row, str(sum(counts[kind, phase] for phase in Phase))])
    sums = [str(sum(counts[kind, phase] for kind in Kind)) for phase in Phase]
    rows.append(["all", *sums, str(sum(counts.values()))])
    return "\n".join(_aligned(rows))


def _shown(kind: Kind, phase: Phase, count: int) -> str:
    return "-" if Cell(kind=kind, phase=phase) in _IMPOSSIBLE else str(count)


def _aligned(rows: Sequence[Sequence[str]]) -> list[str]:
    first, *rest = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return [
        "  ".join([row[0].ljust(first), *(w.rjust(n) for w, n in zip(row[1:], rest, strict=True))])
        for row in rows
    ]
