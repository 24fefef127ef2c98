"""Stage cuts under memory: cuts and per-stage recompute of a candidate, or how far it is from fitting."""

from collections.abc import Sequence

import numpy as np

from varuna_manager.planner.cuts import CutTable, intervals
from varuna_manager.planner.memory import MARGIN, Residency, kept, peak_bytes
from varuna_manager.planner.pipeline import reduction_volume
from varuna_manager.planner.workload import Floats, Workload, transfer_s
from varuna_runtime.spec.layout import BatchShape, Layout, ScheduleKind, Stage
from varuna_runtime.spec.programs import most_in_flight


class StageCutter:
    """Cuts for every number of stages at one D, schedule and slot memory; under zero-bubble, for one number.

    A stage costs the lower bound it puts on the step: forwards before it, all its work, then the slower of
    its reduction and the backwards before it. It recomputes only where it does not fit otherwise; the last
    stage never does, as its backward follows its forward at once.
    """

    def __init__(
        self,
        work: Workload,
        batch: BatchShape,
        *,
        layout: Layout,
        schedule: ScheduleKind,
        num_micro: int,
        memory_bytes: int,
    ) -> None:
        self._work, self._batch = work, batch
        self._layout, self._schedule, self._num_micro = layout, schedule, num_micro
        self._room = memory_bytes / MARGIN
        self._first, self._last, self._valid = intervals(work.num_segments)
        volume = reduction_volume(batch.virtual_replicas, layout.replicas)
        params = work.param_bytes[self._last] - work.param_bytes[self._first]
        self._reduction_s = transfer_s(work.cross_node, 1.0) * volume * params
        self._table = CutTable(work.num_segments, self._cost)
        self._least = CutTable(work.num_segments, self._least_peak)
        self._known: dict[tuple[int, int, int], Stage] = {}  # cuts into more stages end like those into fewer

    def stages(self, num_stages: int) -> tuple[Stage, ...] | None:
        """Return the best stages, or None when none fit."""
        if not np.isfinite(self._table.worst(num_stages)):
            return None
        return tuple(
            self._stage(first, last, num_stages - s)
            for s, (first, last) in enumerate(self._table.cuts(num_stages))
        )

    def stages_at(self, cuts: Sequence[int]) -> tuple[Stage, ...] | None:
        """Return the stages that end before the segments `cuts`; None where one is empty or does not fit."""
        firsts = [0, *cuts[:-1]]
        if any(first >= last for first, last in zip(firsts, cuts, strict=True)):
            return None
        found = []
        for s, (first, last) in enumerate(zip(firsts, cuts, strict=True)):
            left = len(cuts) - s
            if self.peak(first, last, left, recompute=left > 1) > self._room:
                return None
            found.append(self._stage(first, last, left))
        return tuple(found)

    def peak(
        self, first: int, last: int, stages_left: int, *, recompute: bool = False, in_flight: int = 0
    ) -> float:
        """Return the predicted peak bytes of one stage; `in_flight` 0 is the least it may be given."""
        kept = self._kept(stages_left, in_flight)
        return float(peak_bytes(self._work, first, last, kept, recompute=recompute))

    def least_memory_bytes(self, num_stages: int) -> float:
        """Return the slot memory at which `num_stages` stages would begin to fit."""
        return self._least.worst(num_stages) * MARGIN

    def _stage(self, first: int, last: int, stages_left: int) -> Stage:
        place = first, last, stages_left
        if place not in self._known:
            self._known[place] = self._chosen(first, last, stages_left)
        return self._known[place]

    def _chosen(self, first: int, last: int, stages_left: int) -> Stage:
        recompute = self.peak(first, last, stages_left) > self._room
        in_flight = self._most_in_flight(first, last, stages_left, recompute=recompute)
        return Stage(first=first, last=last, recompute=recompute, in_flight=in_flight)

    def _most_in_flight(self, first: int, last: int, stages_left: int, *, recompute: bool) -> int:
        """Return the cap that memory asks for; 0 where the program's own number fits."""
        natural = most_in_flight(self._schedule, stages_left=stages_left, num_micro=self._num_micro)
        least = self._least_in_flight(stages_left)
        if least == natural:
            return 0
        peaks = [
            self.peak(first, last, stages_left, recompute=recompute, in_flight=n) for n in (least, least + 1)
        ]
        step = peaks[1] - peaks[0]
        most = least + int((self._room - peaks[0]) / step) if step > 0 else natural
        return 0 if most >= natural else max(most, least)

    def _least_in_flight(self, stages_left: int) -> int:
        """Return the least cap worth having: for a rule that takes any number, that of eager 1F1B."""
        schedule = self._schedule
        if schedule in (ScheduleKind.WORK_CONSERVING, ScheduleKind.ZERO_BUBBLE):
            schedule = ScheduleKind.EAGER
        return most_in_flight(schedule, stages_left=stages_left, num_micro=self._num_micro)

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

    def _kept(self, stages_left: int, in_flight: int = 0) -> Residency:
        return kept(
            self._batch,
            self._schedule,
            layout=self._layout,
            stages_left=stages_left,
            num_micro=self._num_micro,
            in_flight=in_flight or self._least_in_flight(stages_left),
        )
