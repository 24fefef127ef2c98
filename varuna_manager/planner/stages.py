"""Stage cuts under memory: the cuts, recompute and bound of a candidate, or how far it is from fitting."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate, pairwise

import numpy as np

from varuna_manager.planner.bounds import passes
from varuna_manager.planner.cuts import CutTable
from varuna_manager.planner.grid import StageGrid
from varuna_manager.planner.layout_bounds import least_optimizer_s
from varuna_manager.planner.memory import MARGIN, Residency, kept, peak_bytes
from varuna_manager.planner.pipeline import agreement_s, reduction_volume, sums_over
from varuna_manager.planner.pools import SlotPool
from varuna_manager.planner.sums import SumCost
from varuna_manager.planner.workload import Floats, Workload, transfer_s
from varuna_runtime.spec.layout import BatchShape, Layout, ScheduleKind, Stage
from varuna_runtime.spec.profile import LinkCost
from varuna_runtime.spec.programs import most_in_flight


@dataclass(frozen=True, slots=True, kw_only=True)
class Links:
    """What the ranks of a layout have between them."""

    boundaries: tuple[LinkCost, ...]  # between each stage and the next
    sums: SumCost  # over the replicas of a stage


def links(work: Workload, pool: SlotPool, layout: Layout) -> Links:
    """Return the links of a layout on a pool; where replicas differ, the slower one counts for all."""
    near, far = work.same_node, work.cross_node
    return Links(
        boundaries=tuple(far if splits else near for splits in pool.split_stages(layout)),
        sums=sums_over(work, pool, layout),
    )


class StageCutter:
    """Cuts for one layout, schedule and slot memory.

    `num_micro` is the largest share of a replica, `whole_micro` the same without a short micro-batch.

    A stage costs the lower bound it puts on the step: the way to it, all its work, then its reduction or the
    way back; see `bounds`. It recomputes only where it does not fit otherwise; the last stage never does, as
    its backward follows its forward at once.
    """

    def __init__(
        self,
        grid: StageGrid,
        batch: BatchShape,
        *,
        layout: Layout,
        schedule: ScheduleKind,
        num_micro: int,
        whole_micro: int,
        memory_bytes: int,
        between: Links,
    ) -> None:
        self._grid, self._work, self._batch, self._between = grid, grid.work, batch, between
        self._layout, self._schedule = layout, schedule
        self._num_micro, self._whole_micro = num_micro, whole_micro
        self._memory_bytes, self._room = memory_bytes, memory_bytes / MARGIN
        inner = self._work.boundary_bytes[1:-1]
        fewest = float(inner.min()) if len(inner) else 0.0
        delays = [link.latency_s + transfer_s(link, fewest) for link in between.boundaries]
        self._lead_s = list(
            accumulate(delays, initial=0.0)
        )  # least time of all messages on the way to a stage
        self._stages: dict[tuple[int, int, int], Stage | None] = {}
        self._table = CutTable(self._work.num_segments, self._cost)
        self._least = CutTable(self._work.num_segments, self._least_peak)

    @property
    def bound_s(self) -> float:
        """Lower bound of the step over all cuts; infinity when none fits."""
        return self._table.worst(self._layout.stages) + agreement_s(self._layout, self._between.sums.link)

    def stages(self) -> tuple[Stage, ...] | None:
        """Return the stages with the least bound, or None when none fit."""
        if not np.isfinite(self.bound_s):
            return None
        return self.stages_at([last for _, last in self._table.cuts(self._layout.stages)])

    def stages_at(self, cuts: Sequence[int]) -> tuple[Stage, ...] | None:
        """Return the stages that end before the segments `cuts`; None where one is empty or does not fit."""
        found: list[Stage] = []
        for s, (first, last) in enumerate(pairwise((0, *cuts))):
            name = first, last, len(cuts) - s
            if name not in self._stages:
                self._stages[name] = self._stage(*name)
            stage = self._stages[name]
            if stage is None:
                return None
            found.append(stage)
        return tuple(found)

    def least_memory_bytes(self) -> float:
        """Return the slot memory at which the layout would begin to fit."""
        return self._least.worst(self._layout.stages) * MARGIN

    def _stage(self, first: int, last: int, stages_left: int) -> Stage | None:
        """Return one stage, or None where it is empty or does not fit."""
        if first >= last:
            return None
        kept, fits = self._kept(stages_left), self._grid.fits
        recompute = not fits(kept, self._memory_bytes, recompute=False)[first, last]
        if recompute:
            is_possible = stages_left > 1 and fits(kept, self._memory_bytes, recompute=True)[first, last]
            if not is_possible:
                return None
        in_flight = self._most_in_flight(first, last, stages_left, recompute=recompute)
        return Stage(first=first, last=last, recompute=recompute, in_flight=in_flight)

    def _most_in_flight(self, first: int, last: int, stages_left: int, *, recompute: bool) -> int:
        """Return the cap that memory asks for; 0 where the program's own number fits."""
        natural = most_in_flight(self._schedule, stages_left=stages_left, num_micro=self._num_micro)
        least = self._least_in_flight(stages_left)
        if least == natural:
            return 0

        def peak(in_flight: int) -> float:
            kept = self._kept(stages_left, in_flight)
            return float(peak_bytes(self._work, first, last, kept, recompute=recompute))

        if peak(natural) <= self._room:
            return 0
        return least - 1 + bisect_right(range(least, natural), self._room, key=peak)

    def _least_in_flight(self, stages_left: int) -> int:
        """Return the least cap worth having: for a rule that takes any number, that of eager 1F1B."""
        schedule = self._schedule
        if schedule in (ScheduleKind.WORK_CONSERVING, ScheduleKind.ZERO_BUBBLE):
            schedule = ScheduleKind.EAGER
        return most_in_flight(schedule, stages_left=stages_left, num_micro=self._num_micro)

    def _cost(self, stages_left: int) -> Floats:
        grid, num_micro = self._grid, self._whole_micro
        index = self._layout.stages - stages_left
        lead_s = self._lead_s[index]
        micro = self._micro_s(stages_left)
        busy = lead_s + num_micro * micro
        if index > 0:
            link, before_s = self._between.boundaries[index - 1], self._lead_s[index - 1]
            serial = transfer_s(link, 1.0) * self._work.boundary_bytes[:-1]
            messages = np.append(num_micro * serial, 0.0)[:, None] + (before_s + link.latency_s)
            busy = np.maximum(busy, messages + grid.forward_s)
        if self._schedule is not ScheduleKind.ZERO_BUBBLE:
            busy = np.maximum(busy, lead_s + self._in_turn_s(stages_left, micro))
        return busy + self._ends_s(index) + self._optimizer_s

    def _micro_s(self, stages_left: int) -> Floats:
        """Return the work per micro-batch, with recompute where needed; infinity where it does not fit."""
        kept = self._kept(stages_left)
        return self._grid.micro_s(kept, self._memory_bytes, is_last=stages_left == 1)

    def _in_turn_s(self, stages_left: int, micro: Floats) -> Floats:
        """Micro-batches that wait for each other, there and back, then the backwards of the others."""
        work = self._work
        natural = most_in_flight(self._schedule, stages_left=stages_left, num_micro=self._num_micro)
        in_turn, others = passes(self._whole_micro, natural)
        hops_s = 2 * (self._lead_s[-1] - self._lead_s[self._layout.stages - stages_left])
        beyond = (work.compute_s[-1] - work.compute_s)[:, None]
        backward = others * (micro - self._grid.forward_s) if others else 0.0
        return np.asarray(in_turn * (beyond + hops_s) + backward)

    def _ends_s(self, index: int) -> Floats:
        """Return what is before a stage, and after it: its reduction, or the way back and the first one's."""
        work, tail = self._work, self._reduction_s
        if index > 0 and self._schedule is not ScheduleKind.ZERO_BUBBLE:
            back = work.backward_s[:, None] + (self._lead_s[index] + self._reduction_s[0, 1])
            tail = np.maximum(tail, back)
        return np.asarray(work.forward_s[:, None] + tail)

    @cached_property
    def _reduction_s(self) -> Floats:
        replicas, params = self._layout.replicas, self._grid.param_bytes
        volume = reduction_volume(self._batch.virtual_replicas, replicas)
        return np.where(params > 0, self._between.sums.seconds(replicas, volume * params), 0.0)

    @cached_property
    def _optimizer_s(self) -> Floats:
        """The slowest optimizer step is no faster than a stage's own, and than the least possible."""
        own = self._grid.param_bytes * self._work.optimizer_step_s_per_byte
        return np.maximum(own, least_optimizer_s(self._work, np.array(self._layout.stages)))

    def _least_peak(self, stages_left: int) -> Floats:
        kept, grid = self._kept(stages_left), self._grid
        peak = peak_bytes(self._work, grid.first, grid.last, kept, recompute=False)
        if stages_left > 1:
            peak = np.minimum(peak, peak_bytes(self._work, grid.first, grid.last, kept, recompute=True))
        return np.where(grid.is_stage, peak, np.inf)

    def _kept(self, stages_left: int, in_flight: int = 0) -> Residency:
        return kept(
            self._batch,
            self._schedule,
            layout=self._layout,
            stages_left=stages_left,
            num_micro=self._num_micro,
            in_flight=in_flight or self._least_in_flight(stages_left),
        )


class LeastBusy:
    """The least that stages put on a step beside the way to them and back, whatever the schedule.

    It holds for up to `replicas` replicas and `num_micro` micro-batches or more in each: the memory taken
    for it is less than any of them keeps.
    """

    def __init__(
        self, grid: StageGrid, *, memory_bytes: int, replicas: int, gradient_copies: int, num_micro: int
    ) -> None:
        self._grid, self._memory_bytes, self._num_micro = grid, memory_bytes, num_micro
        self._kept = Residency(gradient_copies=gradient_copies, held=1, replicas=replicas)
        self._table = CutTable(grid.work.num_segments, self._micro_s)
        self._shares: dict[tuple[int, bool], Floats] = {}
        self._works: dict[tuple[int, bool], Floats] = {}

    def micro_s(self, num_stages: int) -> float:
        """Return the work per micro-batch of the busiest of as many stages, at best."""
        return self._table.worst(num_stages)

    def share_s(self, stages_left: int) -> Floats:
        """Return the work of stages which with those after them make `stages_left`.

        Or, where that is more, one micro-batch through all of these, then the backwards of the others.
        """
        place = self._held(stages_left), stages_left == 1
        if place not in self._shares:
            self._shares[place] = self._share_s(stages_left)
        return self._shares[place]

    def _share_s(self, stages_left: int) -> Floats:
        compute, num_micro = self._grid.work.compute_s, self._num_micro
        micro = self._micro_s(stages_left)
        others = (num_micro - 1) * (micro - self._grid.forward_s) if num_micro > 1 else 0.0
        return np.asarray(np.maximum(num_micro * micro, compute[-1] - compute[:, None] + others))

    def _micro_s(self, stages_left: int) -> Floats:
        place = self._held(stages_left), stages_left == 1
        if place not in self._works:
            kept = replace(self._kept, held=place[0])
            self._works[place] = self._grid.micro_s(kept, self._memory_bytes, is_last=place[1])
        return self._works[place]

    def _held(self, stages_left: int) -> int:
        """Return a power of two that is no more than they hold: there are few of these."""
        return 1 << (min(stages_left, self._num_micro).bit_length() - 1)
