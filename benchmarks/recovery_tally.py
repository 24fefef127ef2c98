"""Recoveries as samples, rows and claims."""

import math
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks import recovery_stamps as stamps
from benchmarks.measure import Case, Claim, Row, Samples, Spread
from benchmarks.options import Options
from benchmarks.recovery_processes import ForeignLoad
from benchmarks.recovery_stamps import Recovery, Stamp
from benchmarks.testbed import Run


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One fault."""

    recovery: Recovery
    step_s: float  # before it


class Tally:
    """All attempts of a case; those on a busy machine are set aside as everywhere."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._samples = Samples()
        self._counts: dict[str, int] = {}
        self._lost: dict[str, list[float]] = {}

    def keep(self, name: str, recovery: Recovery, step_s: float, load: ForeignLoad) -> None:
        """Add an attempt, whose foreign load was watched since the fault."""
        number = self._counts[name] = self._counts.get(name, -1) + 1
        run = Run(
            wall_s=recovery.wall_s,
            cpu_s=(0.0,),
            foreign=load.cores(),
            values=(Attempt(recovery=recovery, step_s=step_s),),
        )
        self._samples.add(number, name, run)
        self._lost.setdefault(name, []).append(recovery.lost_steps)
        self._options.say(
            f"  {number:2d} {name:36s} {recovery.wall_s:7.3f} s, first step {recovery.resumed_s:6.3f} s, "
            f"lost {recovery.lost_steps:2d}, a step {step_s:5.3f} s, foreign {run.foreign:.2f}"
        )

    def has(self, name: str) -> bool:
        """Whether anything of that name was kept."""
        return name in self._counts

    def rows(self) -> list[Row]:
        """Return a row for each contestant."""
        return [self._row(name) for name in self._samples.names]

    def within(self, name: str, target_s: float, *, p95_s: float | None = None) -> list[Claim]:
        """Return claims about the time: its median, and its 95th percentile."""
        walls = [run.wall_s for run in self._samples.runs(name)]
        found = [Claim(text=f"{name}: s", value=Spread.of(walls), target=target_s, at_most=True)]
        if p95_s is not None:
            value = Spread.of([percentile(walls, 0.95)])
            found.append(Claim(text=f"{name}: s, 95th percentile", value=value, target=p95_s, at_most=True))
        return found

    def lost(self, name: str, target: float = 0.0) -> Claim:
        """Return the claim that no committed step was lost; every attempt counts, the worst is shown."""
        counts = self._lost[name]
        worst = Spread(median=max(counts), low=min(counts), high=max(counts), count=len(counts))
        return Claim(text=f"{name}: committed steps lost, at most", value=worst, target=target, at_most=True)

    def against(self, ours: str, peer: str, target: float) -> Claim:
        """Return the claim that the peer takes that many times as long."""
        theirs = median(run.wall_s for run in self._samples.runs(peer))
        ratios = [theirs / run.wall_s for run in self._samples.runs(ours)]
        return Claim(text=f"{peer} / {ours}", value=Spread.of(ratios), target=target)

    def noise(self) -> str:
        """Say how many attempts were set aside."""
        return self._samples.noise()

    def _attempts(self, name: str) -> list[Attempt]:
        return [run.values[0] for run in self._samples.runs(name)]

    def _row(self, name: str) -> Row:
        attempts = self._attempts(name)
        return Row(
            name=name,
            step_s=self._samples.step(name),
            shares={
                "first step of all": median(a.recovery.resumed_s for a in attempts),
                "lost steps": median(a.recovery.lost_steps for a in attempts),
                "usual step": median(a.step_s for a in attempts),
            },
        )


def percentile(values: Sequence[float], share: float) -> float:
    """Return the smallest value that so large a share of all does not exceed."""
    return sorted(values)[math.ceil(share * len(values)) - 1]


def aim(seen: Sequence[Stamp], draw: random.Random) -> float:
    """Sleep for a random part of a step, so that faults hit all of it; return the usual time of a step."""
    step_s = stamps.usual_step_s(seen, seen[-1].life)
    time.sleep(draw.random() * step_s)
    return step_s


def finish(case: Case, tally: Tally) -> Case:
    """Put rows and noise into a case."""
    case.rows += tally.rows()
    case.notes.append(tally.noise())
    return case
