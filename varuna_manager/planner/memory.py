"""The memory model: predicted peak bytes of a rank, for one stage or for all possible stages at once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from varuna_manager.planner.workload import Floats, Workload
from varuna_runtime.spec.layout import BatchShape, Layout, ScheduleKind
from varuna_runtime.spec.programs import most_in_flight, most_pending

Index = int | NDArray[np.intp]

MARGIN = 1.1
"""A stage must fit with this factor on its predicted peak: allocator slack and what the model leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """What a layout keeps alive on each rank, besides parameters and optimizer state."""

    gradient_copies: int
    held: int  # micro-batches between their forward and the end of their backward
    recomputed: int = 1  # of these, the ones with activations where the stage recomputes
    replicas: int = 1  # that may share the optimizer


def residency(batch: BatchShape, *, replicas: int, held: int, recomputed: int = 1) -> Residency:
    """Return the copies of contract E4: ceil(log2(V/D)) + 1 sums, one in progress, one for the exchange."""
    owned = -(-batch.virtual_replicas // replicas)
    sums = (owned - 1).bit_length() + 1
    copies = sums + 1 + (replicas > 1)
    return Residency(gradient_copies=copies, held=held, recomputed=recomputed, replicas=replicas)


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
    pending = most_pending(schedule, num_stages=layout.stages, num_micro=num_micro)
    return residency(
        batch, replicas=layout.replicas, held=min(most + pending, num_micro), recomputed=1 + pending
    )


def peak_bytes(work: Workload, first: Index, last: Index, kept: Residency, *, recompute: bool) -> Floats:
    """Return the predicted peak of stages [first, last); index arrays broadcast.

    Stage inputs are always stashed. With recompute, activations are there for one micro-batch, and for those
    whose parameters' gradients are still owed.
    """
    params = work.param_bytes[last] - work.param_bytes[first]
    shares = kept.replicas if work.is_optimizer_sharded else 1
    optimizer = (work.optimizer_bytes[last] - work.optimizer_bytes[first]) / shares
    saved = work.saved_bytes[last] - work.saved_bytes[first]
    entering, leaving = work.boundary_bytes[first], work.boundary_bytes[last]
    stash = kept.held * entering + min(kept.recomputed if recompute else kept.held, kept.held) * saved
    return np.asarray(params * (1 + kept.gradient_copies) + optimizer + stash + 2 * (entering + leaving))
