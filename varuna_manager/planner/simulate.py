"""Simulation of one step of a candidate, with the same programs and ready-rule as the engine.

Links are FIFO in each direction, compute never waits for a send, the first stage's data is always there.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec

import numpy as np

from varuna_manager.planner import compiled, event_loop
from varuna_manager.planner.groups import Group, alone, groups
from varuna_manager.planner.recording import TimedOp
from varuna_manager.planner.timing import Pipeline, StageTiming

SMALL_OPS = 20_000
"""Ops up to which the plain event loop is faster than to load the compiled one, as in a small job's plan."""
TINY_OPS = 500  # the same once it is loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Prediction for one step; `busy_s` is the mean over replicas of what a slot of that stage works."""

    step_s: float
    busy_s: tuple[float, ...]

    @property
    def bubble_share(self) -> float:
        """Idle share of a slot's time in the step."""
        if self.step_s <= 0:
            return 0.0
        return max(0.0, 1.0 - sum(self.busy_s) / (len(self.busy_s) * self.step_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How long steps take under luck."""

    p50_s: float
    p95_s: float
    mean_s: float


def simulate(candidate: Pipeline, seed: int | None = None) -> Simulation:
    """Return the predicted step: all replicas, then per-stage reductions, agreement, optimizer.

    Without a seed every op takes its profiled time; with one, times are drawn from the quantiles of the
    candidate, equal draws for equal seeds whatever the schedule. Seeds are from 0 to 2^31 - 1.
    """
    return _simulated(candidate, groups(candidate, seed), num_runs=1)


def quantiles(candidate: Pipeline, seeds: Sequence[int]) -> Spread:
    """Return the spread of the step over `seeds`; without jitter all are equal, and one is simulated."""
    if not candidate.has_jitter:
        step_s = simulate(candidate).step_s
        return Spread(p50_s=step_s, p95_s=step_s, mean_s=step_s)
    runs = (_simulated(candidate, groups(candidate, seed), num_runs=len(seeds)) for seed in seeds)
    steps_s = [run.step_s for run in runs]
    p50_s, p95_s = np.quantile(steps_s, (0.5, 0.95))
    return Spread(p50_s=float(p50_s), p95_s=float(p95_s), mean_s=float(np.mean(steps_s)))


def stage_ends(candidate: Pipeline, num_micro: int) -> tuple[float, ...]:
    """Return when each stage of a replica with `num_micro` micro-batches, alone on its links, is done."""
    return tuple(rank.free_s for rank in event_loop.run(candidate, alone(num_micro)))


def _simulated(candidate: Pipeline, found: Sequence[Group], *, num_runs: int) -> Simulation:
    """Return the step of the groups of a candidate, as one of `num_runs` alike."""
    num_ops = (
        num_runs * sum(group.num_micro for group in found) * sum(2 + s.recompute for s in candidate.stages)
    )
    num_stages = len(candidate.stages)
    ends_s = [0.0] * num_stages
    for group in found:
        for rank, end_s in enumerate(_ends(candidate, group, num_ops)):
            ends_s[rank % num_stages] = max(ends_s[rank % num_stages], end_s)
    reduced_s = max(end_s + stage.reduction_s for end_s, stage in zip(ends_s, candidate.stages, strict=True))
    return Simulation(
        step_s=reduced_s + candidate.agreement_s + max(stage.optimizer_s for stage in candidate.stages),
        busy_s=tuple(_busy_s(candidate, stage) for stage in candidate.stages),
    )


def _ends(candidate: Pipeline, group: Group, num_ops: int) -> list[float]:
    """Return when each rank of a group is done; `num_ops` is what loading the compiled loop would pay for."""
    if num_ops > (TINY_OPS if compiled.is_loaded() else SMALL_OPS) and _has_numba():
        return compiled.ends(candidate, group)
    return [rank.free_s for rank in event_loop.run(candidate, group)]


def _has_numba() -> bool:
    return find_spec("numba") is not None


def _busy_s(candidate: Pipeline, stage: StageTiming) -> float:
    mean_micro = (sum(candidate.micro_batches) - 1 + candidate.last_compute) / len(candidate.micro_batches)
    return mean_micro * stage.micro_s + stage.reduction_s + stage.optimizer_s


def timeline(candidate: Pipeline, num_micro: int) -> tuple[tuple[TimedOp, ...], ...]:
    """Return what each stage of such a replica runs, in order."""
    return tuple(
        tuple(TimedOp(*ran) for ran in rank.ran) for rank in event_loop.run(candidate, alone(num_micro))
    )
