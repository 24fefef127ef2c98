"""What the stamps of a training say of a fault; times are of the monotonic clock."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import median


@dataclass(frozen=True, slots=True, kw_only=True)
class Stamp:
    """One committed step."""

    at_s: float
    step: int
    life: int  # grows with each start of the training; a generation of ours
    loss_hex: str
    world: int  # ranks that made it; 0: not told


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """From a fault to the first step that nobody had committed before it."""

    wall_s: float
    resumed_s: float  # to the first step at all, replayed or not
    lost_steps: int


def read(path: Path) -> list[Stamp]:
    """Return the stamps so far, the oldest first; a line that is still being written is left out."""
    if not path.exists():
        return []
    lines = path.read_text().rpartition("\n")[0].splitlines()
    return sorted(map(_stamp, lines), key=lambda stamp: stamp.at_s)


def recovery(stamps: Sequence[Stamp], fault_s: float) -> Recovery | None:
    """Return what a fault cost; None while no new step is committed.

    A step that the old life still committed after the fault is no recovery, and it counts as known.
    """
    before = [stamp for stamp in stamps if stamp.at_s <= fault_s]
    life = max(stamp.life for stamp in before)
    newest = max(stamp.step for stamp in stamps if stamp.life <= life)
    after = [stamp for stamp in stamps if stamp.life > life]
    first = next((stamp for stamp in after if stamp.step > newest), None)
    if first is None:
        return None
    return Recovery(
        wall_s=first.at_s - fault_s,
        resumed_s=after[0].at_s - fault_s,
        lost_steps=max(0, newest + 1 - after[0].step),
    )


def usual_step_s(stamps: Sequence[Stamp], life: int) -> float:
    """Return the median time between two steps of a life; NaN where there are none."""
    own = [stamp.at_s for stamp in _new_steps([stamp for stamp in stamps if stamp.life == life])]
    return median([b - a for a, b in pairwise(own)]) if len(own) > 1 else math.nan


def pauses_s(stamps: Sequence[Stamp], from_s: float, until_s: float) -> list[float]:
    """Return the times between new steps, of those that end between two moments."""
    return [b.at_s - a.at_s for a, b in pairwise(_new_steps(stamps)) if from_s <= b.at_s <= until_s]


def switch_s(stamps: Sequence[Stamp], life: int) -> float:
    """Return the time from the last new step before a life to the first new one of it."""
    steps = _new_steps(stamps)
    first = next(index for index, stamp in enumerate(steps) if stamp.life == life)
    return steps[first].at_s - steps[first - 1].at_s


def replayed(stamps: Sequence[Stamp], from_s: float) -> int:
    """Return how many steps were made again after a moment: all that a life before had committed."""
    newest, found = -1, 0
    for stamp in stamps:
        found += stamp.at_s > from_s and stamp.step <= newest
        newest = max(newest, stamp.step)
    return found


def losses(stamps: Sequence[Stamp]) -> dict[int, set[str]]:
    """Return every loss that was seen of each step, in hexadecimal."""
    found: dict[int, set[str]] = {}
    for stamp in stamps:
        found.setdefault(stamp.step, set()).add(stamp.loss_hex)
    return found


def _new_steps(stamps: Sequence[Stamp]) -> list[Stamp]:
    newest, found = -1, []
    for stamp in stamps:
        if stamp.step > newest:
            newest = stamp.step
            found.append(stamp)
    return found


def _stamp(line: str) -> Stamp:
    at_ns, step, life, loss_hex, world = line.split()
    return Stamp(at_s=int(at_ns) / 1e9, step=int(step), life=int(life), loss_hex=loss_hex, world=int(world))
