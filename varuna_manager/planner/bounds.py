"""Proven lower bounds on a step with known cuts: what lets the search skip a simulation.

A stage is a machine that cannot start before the first activation reaches it (head), must do all its work,
and whose last gradient must still travel to the first stage (tail). So is a link. And where at most K
micro-batches are in flight, a stage has little to do until the first is back, and after the last has left.
"""

from itertools import accumulate
from typing import TypeVar

from varuna_manager.planner.pipeline import Pipeline
from varuna_manager.planner.workload import Floats
from varuna_runtime.spec.layout import ScheduleKind
from varuna_runtime.spec.programs import in_flight_cap

Seconds = TypeVar("Seconds", float, Floats)

SLACK = 1e-9
"""Relative room for rounding: a bound prunes only what it beats by more than this."""


def pipeline_bound_s(candidate: Pipeline) -> float:
    """Return a lower bound for a candidate with known cuts."""
    num_micro = candidate.whole_micro
    is_split = candidate.schedule is ScheduleKind.ZERO_BUBBLE
    beyond = _beyond_s(candidate)
    head_s, tail_s, worst_s = 0.0, 0.0, 0.0
    for s, stage in enumerate(candidate.stages):
        if s > 0:
            before, boundary = candidate.stages[s - 1], candidate.boundaries[s - 1]
            tail_s = 0.0 if is_split else tail_s + before.backward_s + boundary.delay_s
            link_s = before.forward_s + num_micro * boundary.serial_s + boundary.latency_s
            worst_s = max(worst_s, head_s + link_s + stage.forward_s + tail_s)
            head_s += before.forward_s + boundary.delay_s
        tail_s = max(tail_s, stage.reduction_s)
        worst_s = max(worst_s, head_s + num_micro * stage.micro_s + tail_s)
        if not is_split:
            most = _in_flight(candidate, s, max(candidate.micro_batches))
            replay_s = stage.micro_s - stage.forward_s - stage.backward_s
            through_s = stage.forward_s + max(beyond[s], replay_s) + stage.backward_s
            busy_s = max(capped_s(through_s, stage.forward_s, stage.micro_s, num_micro, most))
            worst_s = max(worst_s, head_s + busy_s + tail_s)
    return worst_s + candidate.agreement_s + max(stage.optimizer_s for stage in candidate.stages)


def capped_s(
    through_s: Seconds, forward_s: Seconds, micro_s: Seconds, num_micro: int, most_in_flight: Seconds
) -> tuple[Seconds, ...]:
    """Return lower bounds on the time from the start of a stage's first forward to the end of its backwards.

    `through_s` is that of a single micro-batch, to the last stage and back; `micro_s` is all work for one.
    With at most K in flight:
    - every K-th micro-batch starts after the one before it ended; backwards of the rest follow the last;
    - until the first backward ends there are at most K forwards, and one recompute before it starts: all else
      comes later;
    - the last forward waits for the K-th last backward before it, so that besides most other work there are
      two whole ways: until the first backward starts, and from the last forward on.
    """
    in_turn = -(-num_micro // most_in_flight)
    rest = num_micro - 1 - (in_turn - 1) * most_in_flight
    first = most_in_flight + (num_micro - most_in_flight) * (num_micro < most_in_flight)
    return (
        in_turn * through_s + rest * (micro_s - forward_s),
        through_s + (num_micro - 1) * micro_s - (first - 1) * forward_s,
        (2 * through_s + (num_micro - most_in_flight - 1) * micro_s) * (num_micro > most_in_flight),
    )


def _in_flight(candidate: Pipeline, index: int, num_micro: int) -> int:
    left, in_flight = len(candidate.stages) - index, candidate.stages[index].in_flight
    return in_flight_cap(candidate.schedule, stages_left=left, num_micro=num_micro, in_flight=in_flight)


def _beyond_s(candidate: Pipeline) -> list[float]:
    """Return for each stage the least time from the end of a forward to the arrival of its gradient."""
    ways = [
        2 * boundary.delay_s + stage.forward_s + stage.backward_s
        for boundary, stage in zip(candidate.boundaries, candidate.stages[1:], strict=True)
    ]
    return list(accumulate(reversed(ways), initial=0.0))[::-1]
