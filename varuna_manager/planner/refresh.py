"""A profile against running steps: what they should take, how they differ, the profile that fits."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import median, median_low

from varuna_manager.planner.workload import workload
from varuna_runtime.spec.layout import Plan
from varuna_runtime.spec.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class Paces:
    """How many times as long as the profile says the ops of running steps took."""

    stages: tuple[float, ...]  # by stage, of its replica in the middle
    nodes: Mapping[
        str, float
    ]  # by node, of its ranks over their stages' paces; 1 where none is to compare with


def paces(profile: Profile, plan: Plan, seen_s: Mapping[int, Sequence[float]]) -> Paces:
    """Return how `plan` ran; `seen_s` are by rank the seconds that ops took per micro-batch, step by step.

    Every rank needs at least one step. A single slow step or replica moves no median; of two replicas the
    faster one stands for the stage.
    """
    expected_s = busy_s(profile, plan)
    ranks = range(plan.layout.world_size)
    by_rank = [_ratio(median(seen_s[rank]), expected_s[plan.layout.stage_of(rank)]) for rank in ranks]
    stages = tuple(median_low(by_rank[stage :: plan.layout.stages]) for stage in range(plan.layout.stages))
    own = [ratio / stages[plan.layout.stage_of(rank)] for rank, ratio in enumerate(by_rank)]
    return Paces(
        stages=stages,
        nodes={node: median(own[rank] for rank in plan.ranks_on(node)) for node in plan.nodes},
    )


def busy_s(profile: Profile, plan: Plan) -> tuple[float, ...]:
    """Return by stage what its ops take per micro-batch."""
    work = workload(profile, plan.batch.micro_batch_size)
    one = work.forward_s + work.backward_under(plan.schedule)
    return tuple(
        float(
            one[at.last]
            - one[at.first]
            + (work.recompute_s[at.last] - work.recompute_s[at.first] if at.recompute else 0.0)
        )
        for at in plan.stages
    )


def refreshed(profile: Profile, plan: Plan, factors: Sequence[float], *, by: str) -> Profile:
    """Return the profile with the times of each stage's segments multiplied by the stage's factor.

    `by` says whose steps it was fitted to. Bytes, links and what is chosen by name stay as they are.
    """
    of_segment = [
        factor
        for stage, factor in zip(plan.stages, factors, strict=True)
        for _ in range(stage.first, stage.last)
    ]
    sizes = tuple(
        replace(
            at,
            segments=tuple(
                cost.times_as_long(factor) for cost, factor in zip(at.segments, of_segment, strict=True)
            ),
        )
        for at in profile.by_micro_batch
    )
    return replace(profile, by_micro_batch=sizes, refreshed_by=by)


def _ratio(seen_s: float, expected_s: float) -> float:
    return seen_s / expected_s if seen_s > 0 and expected_s > 0 else 1.0
