"""The memory model: predicted peak bytes of a rank, for one stage or for all possible stages at once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from varuna_manager.planner.workload import Floats, Workload
from varuna_runtime.spec.layout import BatchShape, ScheduleKind
from varuna_runtime.spec.schedule import most_in_flight

Index = int | NDArray[np.intp]

MARGIN = 1.1
"""A stage must fit with this factor on its predicted peak: allocator slack and what the model leaves out."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """What a layout keeps alive on each rank, besides parameters and optimizer state."""

    gradient_copies: int
    in_flight: int


def residency(batch: BatchShape, *, replicas: int, in_flight: int) -> Residency:
    """Return the copies of contract E4: ceil(log2(V/D)) + 1 sums, one in progress, one for the exchange."""
    owned = -(-batch.virtual_replicas // replicas)
    sums = (owned - 1).bit_length() + 1
    return Residency(gradient_copies=sums + 1 + (replicas > 1), in_flight=in_flight)


def in_flight(schedule: ScheduleKind, *, stages_left: int, num_micro: int) -> int:
    """Return the most micro-batches a stage holds; `stages_left` counts it and those after it."""
    return most_in_flight(schedule, stages_left=stages_left, num_micro=num_micro)


def peak_bytes(work: Workload, first: Index, last: Index, kept: Residency, *, recompute: bool) -> Floats:
    """Return the predicted peak of stages [first, last); index arrays broadcast.

    Stage inputs are always stashed; with recompute, one micro-batch is materialised at a time.
    """
    params = work.param_bytes[last] - work.param_bytes[first]
    optimizer = work.optimizer_bytes[last] - work.optimizer_bytes[first]
    saved = work.saved_bytes[last] - work.saved_bytes[first]
    entering, leaving = work.boundary_bytes[first], work.boundary_bytes[last]
    stash = kept.in_flight * entering + (saved if recompute else kept.in_flight * saved)
    return np.asarray(params * (1 + kept.gradient_copies) + optimizer + stash + 2 * (entering + leaving))
