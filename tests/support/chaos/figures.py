"""What a campaign measured: how much of the time trained, and how long nothing new was committed. Pure."""

import itertools
import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from tests.support.chaos.checker import Told


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of one job, or of several together; seconds."""

    useful_s: float  # of the steps that were committed first
    wall_s: float
    outages_s: tuple[
        float, ...
    ]  # from the last new step of a generation to the next new step, of a later one

    @property
    def goodput(self) -> float:
        """Share of the time that did steps which nobody had done before."""
        return self.useful_s / self.wall_s if self.wall_s else 0.0


def figures(told: Sequence[Told]) -> Figures:
    """Return the figures of a job from what it told; a step that is told again is no progress."""
    newest = -1
    fresh: list[Told] = []
    for record in sorted(told, key=lambda t: t.at_s):
        if record.step > newest:
            newest = record.step
            fresh.append(record)
    pairs = list(itertools.pairwise(fresh))
    outages = [after.at_s - before.at_s for before, after in pairs if after.generation > before.generation]
    return Figures(
        useful_s=sum(record.step_s for record in fresh),
        wall_s=fresh[-1].at_s - fresh[0].at_s + fresh[0].step_s if fresh else 0.0,
        outages_s=tuple(outages),
    )


def together(several: Iterable[Figures]) -> Figures:
    """Return those of all of them."""
    all_of = tuple(several)
    return Figures(
        useful_s=sum(each.useful_s for each in all_of),
        wall_s=sum(each.wall_s for each in all_of),
        outages_s=tuple(s for each in all_of for s in each.outages_s),
    )


def line(found: Figures) -> str:
    """Return them in words."""
    text = f"goodput {found.goodput:.0%} of {found.wall_s:.0f} s"
    if len(found.outages_s) < 2:
        return text
    cuts = statistics.quantiles(found.outages_s, n=20, method="inclusive")
    worst = max(found.outages_s)
    return (
        f"{text}; from the last step before to the first new one after {len(found.outages_s)} restarts: "
        f"median {cuts[9]:.2f} s, p90 {cuts[17]:.2f} s, p95 {cuts[18]:.2f} s, longest {worst:.2f} s"
    )
