"""The memory model: predicted peak bytes of a rank, for one stage or for all possible stages at once."""

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from varuna_manager.planner.pipeline import reduction_volume
from varuna_manager.planner.workload import Floats, Workload
from varuna_runtime.spec.layout import BatchShape, Layout, ScheduleKind
from varuna_runtime.spec.programs import most_in_flight, most_pending

Index = int | NDArray[np.intp]

MARGIN = 1.05
"""A stage must fit with this factor on its predicted peak: fragments between the allocator's blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """What a layout keeps alive on each rank, besides parameters and optimizer state."""

    gradient_copies: int
    held: int  # micro-batches between their forward and the end of their backward
    recomputed: int = 1  # of these, the ones with activations where the stage recomputes
    owed: int = 0  # of these, the ones between I and W
    runs_ahead: bool = False  # a forward may run beside a recomputed micro-batch
    replicas: int = 1  # that may share the optimizer
    exchanged: float = 0.0  # gradients received at the end of a step, in copies of the parameters


def residency(
    batch: BatchShape,
    *,
    replicas: int,
    held: int,
    recomputed: int = 1,
    owed: int = 0,
    runs_ahead: bool = False,
) -> Residency:
    """Return the copies of contract E4: the sums of the tree, and the final ones."""
    return Residency(
        gradient_copies=most_sums(batch.virtual_replicas, replicas) + 1,
        held=held,
        recomputed=recomputed,
        owed=owed,
        runs_ahead=runs_ahead,
        replicas=replicas,
        exchanged=reduction_volume(batch.virtual_replicas, replicas),
    )


@lru_cache(maxsize=4096)
def most_sums(virtual_replicas: int, replicas: int) -> int:
    """Return the most sums over virtual replicas that a replica has at one time, the one in progress too.

    Those that are complete are 2^k, 2^(k-1), ... virtual replicas long; where a share begins in the middle
    of the tree, there is a rise from 1 to 2^j before them.
    """
    owned = -(-virtual_replicas // replicas)
    is_even = virtual_replicas % replicas == 0 and (replicas & (replicas - 1)) == 0
    if replicas == 1 or (is_even and (owned & (owned - 1)) == 0):
        return owned.bit_length()
    rises = range(owned.bit_length())
    return 1 + max(up + down for up in rises for down in rises if 2**up + 2**down <= owned + 1)


def kept(
    batch: BatchShape,
    schedule: ScheduleKind,
    *,
    layout: Layout,
    stages_left: int,
    num_micro: int,
    in_flight: int = 0,
) -> Residency:
    """Return what a stage keeps; `stages_left` counts it and those after it, `in_flight` is its cap."""
    most = in_flight or most_in_flight(schedule, stages_left=stages_left, num_micro=num_micro)
    is_rule = schedule in (ScheduleKind.WORK_CONSERVING, ScheduleKind.ZERO_BUBBLE)
    if is_rule and stages_left == 1:
        most = 1  # its gradients are its own, and by the rule they go first
    pending = most_pending(schedule, num_stages=layout.stages, num_micro=num_micro)
    held = min(most + pending, num_micro)
    return residency(
        batch,
        replicas=layout.replicas,
        held=held,
        recomputed=1 + pending,
        owed=min(pending, held),
        runs_ahead=is_rule and held > 1,
    )


def peak_bytes(work: Workload, first: Index, last: Index, kept: Residency, *, recompute: bool) -> Floats:
    """Return the predicted peak of stages [first, last); index arrays broadcast.

    The highest of three times: a micro-batch running on top of those held, the gradients of the others
    coming in at the end, an optimizer step. Where backwards are split, gradients of parameters that were
    found twice, to see that both ways agree, are there once more.
    """
    params = work.param_bytes[last] - work.param_bytes[first]
    shares = kept.replicas if work.is_optimizer_sharded else 1
    optimizer = (work.optimizer_bytes[last] - work.optimizer_bytes[first]) / shares
    entering, leaving = work.boundary_bytes[first], work.boundary_bytes[last]
    tried = params if kept.owed else 0
    running = tried + _running_bytes(work, first, last, kept, recompute=recompute)
    reducing = kept.exchanged * params + entering + work.peaks.whole[first, last]
    highest = np.maximum(running + 2 * entering + leaving, reducing)
    highest = np.maximum(highest, work.peaks.step[first, last])
    fixed = params * (1 + kept.gradient_copies) + optimizer + work.peaks.scratch[first, last]
    return np.asarray(fixed + highest)


def _running_bytes(work: Workload, first: Index, last: Index, kept: Residency, *, recompute: bool) -> Floats:
    """Return inputs and activations at the fullest moment between two ops, and what the op adds."""
    saved = work.saved_bytes[last] - work.saved_bytes[first]
    owed = kept.owed * (work.owed_bytes[last] - work.owed_bytes[first])
    full = min(kept.recomputed if recompute else kept.held, kept.held) - kept.owed
    running = work.peaks.whole[first, last]
    if recompute:
        beside = saved if kept.runs_ahead else 0.0
        running = np.maximum(running, beside + work.peaks.replayed[first, last])
    stash = kept.held * work.boundary_bytes[first] + (full - 1) * saved
    # The loss needs the data of what is held, and one more micro-batch is read ahead.
    reads = np.greater(first, 0) & np.equal(last, work.num_segments)
    stash = stash + np.where(reads, (kept.held + 1) * work.boundary_bytes[0], 0.0)
    highest = stash + owed + running
    if kept.owed:  # nothing is owed yet when the first I is tried
        highest = np.maximum(highest, stash + work.peaks.split[first, last])
    return np.asarray(highest)
