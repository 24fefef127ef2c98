"""Proven lower bounds on a step: what lets the search skip a simulation, and what the explanation shows.

A stage is a machine that cannot start before the first activation reaches it (head), must do all its work,
and whose last gradient must still travel to the first stage (tail).
"""

import numpy as np

from varuna_manager.planner.cuts import CutTable, intervals
from varuna_manager.planner.pipeline import Pipeline
from varuna_manager.planner.workload import Floats, Workload, transfer_s
from varuna_runtime.spec.layout import ScheduleKind
from varuna_runtime.spec.profile import LinkCost

SLACK = 1e-9
"""Relative room for rounding: a bound prunes only what it beats by more than this."""


def pipeline_bound_s(candidate: Pipeline) -> float:
    """Return a lower bound for a candidate with known cuts."""
    num_micro = max(candidate.micro_batches)
    if candidate.schedule is ScheduleKind.ZERO_BUBBLE:
        return _split_bound_s(candidate, num_micro)
    head_s, tail_s, worst_s = 0.0, 0.0, 0.0
    for s, stage in enumerate(candidate.stages):
        if s > 0:
            delay_s = candidate.boundaries[s - 1].delay_s
            head_s += candidate.stages[s - 1].forward_s + delay_s
            tail_s += candidate.stages[s - 1].backward_s + delay_s
        tail_s = max(tail_s, stage.reduction_s)
        worst_s = max(worst_s, head_s + num_micro * stage.micro_s + tail_s)
    optimizer_s = max(stage.optimizer_s for stage in candidate.stages)
    return worst_s + candidate.agreement_s + optimizer_s


def _split_bound_s(candidate: Pipeline, num_micro: int) -> float:
    """Where backwards are split, W may be done while the last gradient travels."""
    head_s, worst_s = 0.0, 0.0
    for s, stage in enumerate(candidate.stages):
        if s > 0:
            head_s += candidate.stages[s - 1].forward_s + candidate.boundaries[s - 1].delay_s
        worst_s = max(worst_s, head_s + num_micro * stage.micro_s + stage.reduction_s)
    return worst_s + candidate.agreement_s + max(stage.optimizer_s for stage in candidate.stages)


class AnyCutBound:
    """Lower bound over all cuts into a number of stages, for one largest share of micro-batches."""

    def __init__(self, work: Workload, num_micro: int, *, is_split: bool = False) -> None:
        self._work = work
        self._num_micro = num_micro
        first, last, valid = intervals(work.num_segments)
        compute = work.compute_s
        # Both ways to the stage and back, of a split backward only what must come before.
        way = work.forward_s if is_split else compute
        self._way = way
        cost = np.where(valid, way[first] + num_micro * (compute[last] - compute[first]), np.inf)
        self._table = CutTable(work.num_segments, lambda _: cost)

    def step_s(self, num_stages: int, *, replicas: int) -> float:
        """Return the bound for `num_stages` x `replicas`, whatever the schedule, recompute and placement."""
        work = self._work
        message_s = min(_message_s(work, link) for link in (work.same_node, work.cross_node))
        hop_s = 2 * (num_stages - 1) * message_s
        through_s = float(self._way[-1] + (self._num_micro - 1) * np.diff(self._way)[-1]) + hop_s
        latency_s = min(work.same_node.latency_s, work.cross_node.latency_s)
        fixed_s = 2 * latency_s if num_stages * replicas > 1 else 0.0
        return max(self._table.worst(num_stages), through_s) + fixed_s + _optimizer_s(work, num_stages)


def _message_s(work: Workload, link: LinkCost) -> float:
    inner: Floats = work.boundary_bytes[1:-1]
    return link.latency_s + transfer_s(link, float(inner.min()) if len(inner) else 0.0)


def _optimizer_s(work: Workload, num_stages: int) -> float:
    per_segment = np.diff(work.param_bytes)
    least = max(float(per_segment.max()), float(work.param_bytes[-1]) / num_stages)
    return least * work.optimizer_step_s_per_byte
