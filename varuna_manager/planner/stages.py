"""Stage cuts under memory: cuts and per-stage recompute of a candidate, or how far it is from fitting."""

import numpy as np

from varuna_manager.planner.cuts import CutTable, intervals
from varuna_manager.planner.memory import MARGIN, Residency, in_flight, peak_bytes, residency
from varuna_manager.planner.pipeline import reduction_volume
from varuna_manager.planner.workload import Floats, Workload, transfer_s
from varuna_runtime.spec.layout import BatchShape, ScheduleKind, Stage


class StageCutter:
    """Cuts for every number of stages at one D, schedule and slot memory.

    A stage costs the lower bound it puts on the step: forwards before it, all its work, then the slower of
    its reduction and the backwards before it. It recomputes only where it does not fit otherwise; the last
    stage never does, as its backward follows its forward at once.
    """

    def __init__(
        self,
        work: Workload,
        batch: BatchShape,
        *,
        replicas: int,
        schedule: ScheduleKind,
        num_micro: int,
        memory_bytes: int,
    ) -> None:
        self._work, self._batch = work, batch
        self._replicas, self._schedule, self._num_micro = replicas, schedule, num_micro
        self._room = memory_bytes / MARGIN
        self._first, self._last, self._valid = intervals(work.num_segments)
        volume = reduction_volume(batch.virtual_replicas, replicas)
        params = work.param_bytes[self._last] - work.param_bytes[self._first]
        self._reduction_s = transfer_s(work.cross_node, 1.0) * volume * params
        self._table = CutTable(work.num_segments, self._cost)
        self._least = CutTable(work.num_segments, self._least_peak)

    def stages(self, num_stages: int) -> tuple[Stage, ...] | None:
        """Return the best stages, or None when none fit."""
        if not np.isfinite(self._table.worst(num_stages)):
            return None
        return tuple(
            Stage(first=first, last=last, recompute=self.peak(first, last, num_stages - s) > self._room)
            for s, (first, last) in enumerate(self._table.cuts(num_stages))
        )

    def peak(self, first: int, last: int, stages_left: int, *, recompute: bool = False) -> float:
        """Return the predicted peak bytes of one stage."""
        kept = self._kept(stages_left)
        return float(peak_bytes(self._work, first, last, kept, recompute=recompute))

    def least_memory_bytes(self, num_stages: int) -> float:
        """Return the slot memory at which `num_stages` stages would begin to fit."""
        return self._least.worst(num_stages) * MARGIN

    def _cost(self, stages_left: int) -> Floats:
        work, kept = self._work, self._kept(stages_left)
        forward = work.forward_s[self._last] - work.forward_s[self._first]
        compute = work.compute_s[self._last] - work.compute_s[self._first]
        fits = peak_bytes(work, self._first, self._last, kept, recompute=False) <= self._room
        micro = np.where(fits, compute, compute + forward)
        if stages_left > 1:
            fits |= peak_bytes(work, self._first, self._last, kept, recompute=True) <= self._room
        micro = np.maximum(micro, transfer_s(work.cross_node, 1.0) * work.boundary_bytes[self._first])
        tail = np.maximum(self._reduction_s, work.backward_s[self._first])
        cost = work.forward_s[self._first] + self._num_micro * micro + tail
        return np.where(self._valid & fits, cost, np.inf)

    def _least_peak(self, stages_left: int) -> Floats:
        kept = self._kept(stages_left)
        peak = peak_bytes(self._work, self._first, self._last, kept, recompute=False)
        if stages_left > 1:
            peak = np.minimum(peak, peak_bytes(self._work, self._first, self._last, kept, recompute=True))
        return np.where(self._valid, peak, np.inf)

    def _kept(self, stages_left: int) -> Residency:
        held = in_flight(self._schedule, stages_left=stages_left, num_micro=self._num_micro)
        return residency(self._batch, replicas=self._replicas, in_flight=held)
