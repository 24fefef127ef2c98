"""Stage cuts under memory: the cuts, recompute and bound of a candidate, or how far it is from fitting."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache, partial, reduce
from itertools import accumulate, pairwise

import numpy as np

from varuna_manager.planner.bounds import capped_s
from varuna_manager.planner.cuts import CutTable
from varuna_manager.planner.grid import Block, StageGrid
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


WIDE_STEP = 2.5
"""How many more micro-batches than the next a stage may hold under eager 1F1B, 2 by nature: this many hide
what uneven stages and messages cost in nearly all simulations, more in no other."""


class StageCutter:
    """Cuts for one layout, schedule and slot memory.

    `num_micro` is the largest share of a replica, `whole_micro` the same without a short micro-batch. Under
    eager 1F1B at most `step` more are in flight at a stage than at the next.

    A stage costs the lower bound it puts on the step: the way to it, all its work, then its reduction or the
    way back; see `bounds`. It recomputes only where it does not fit otherwise; the last stage never does, as
    its backward follows its forward at once. `own` has the costs of each stage where their slots differ in
    speed; the ways to a stage and back are then as fast as the fastest, which `grid` is for.
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
        step: float = WIDE_STEP,
        own: tuple[StageGrid, ...] = (),
    ) -> None:
        self.step = step
        self._grid, self._work, self._batch, self._between = grid, grid.work, batch, between
        self._own = own or (grid,) * layout.stages
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
        self._busy: dict[int, Floats] = {}

    @cached_property
    def bound_s(self) -> float:
        """Lower bound of the step over all cuts; infinity when none fits."""
        return float(self._by_first_s.min()) + agreement_s(self._layout, self._between.sums.link)

    def stages(self) -> tuple[Stage, ...] | None:
        """Return the stages with the least bound, or None when none fit."""
        least_s = self._by_first_s.min()
        if not np.isfinite(least_s):
            return None
        others = self._layout.stages - 1
        if others == 0:
            return self.stages_at([self._work.num_segments])
        tied = np.flatnonzero(self._by_first_s <= least_s)
        after = CutTable(partial(self._cost, first_reduction_s=float(self._first_reduction_s[tied[0]])))
        at = int(tied[np.argmin(self._first_s[tied] ** 2 + after.squares(others)[tied])])
        return self.stages_at([s + 1 + end for s, end in enumerate((at, *after.cuts(others, at)))])

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

    def widened(self, stages: Sequence[Stage]) -> tuple[Stage, ...] | None:
        """Return eager 1F1B's stages with more in flight, or None where there is no room or nothing to win.

        The numbers fall evenly from stage to stage, as neighbours with the same number take turns.
        """
        if self._schedule is not ScheduleKind.EAGER:
            return None
        step = self.step_of(stages)
        caps = [_wide_in_flight(left, self._num_micro, step) for left in range(len(stages), 0, -1)]
        if caps == [self._least_in_flight(left) for left in range(len(stages), 0, -1)]:
            return None
        return tuple(replace(stage, in_flight=cap) for stage, cap in zip(stages, caps, strict=True))

    def step_of(self, stages: Sequence[Stage]) -> float:
        """Return how many more than the next each stage has room for in flight, `WIDE_STEP` at most."""
        step = self.step
        for after, stage in zip(range(len(stages) - 1, 0, -1), stages, strict=False):
            most = self._most_in_flight(stage, after + 1)
            if most < self._largest_in_flight(after + 1):
                step = min(step, (most - 1) / after)
        return step

    def fits(self) -> bool:
        """Return whether any stages fit; most often equal ones do, which is soon seen."""
        num_stages, num_segments = self._layout.stages, self._work.num_segments
        equal = [(s + 1) * num_segments // num_stages for s in range(num_stages)]
        return self.stages_at(equal) is not None or self.least_memory_bytes() <= self._memory_bytes

    def least_memory_bytes(self) -> float:
        """Return the slot memory at which the layout would begin to fit."""
        return float(CutTable(self._least_peak).worst(self._layout.stages)[0]) * MARGIN

    def _stage(self, first: int, last: int, stages_left: int) -> Stage | None:
        """Return one stage, or None where it is empty or does not fit."""
        if first >= last:
            return None
        fits = [
            self._most_held(stages_left, recompute=recompute)[first, last] >= self._kept(stages_left).held
            for recompute in (False, True)
        ]
        if not (fits[0] or (fits[1] and stages_left > 1)):
            return None
        recompute = not fits[0]
        stage = Stage(first=first, last=last, recompute=recompute)
        natural = most_in_flight(self._schedule, stages_left=stages_left, num_micro=self._num_micro)
        if natural == self._least_in_flight(stages_left):
            return stage
        most = self._most_in_flight(stage, stages_left)
        return stage if most == natural else replace(stage, in_flight=most)

    def _most_in_flight(self, stage: Stage, stages_left: int) -> int:
        """Return the largest number worth having that memory has room for."""
        least, largest = self._least_in_flight(stages_left), self._largest_in_flight(stages_left)

        def peak(in_flight: int) -> float:
            kept = self._kept(stages_left, in_flight)
            return float(peak_bytes(self._work, stage.first, stage.last, kept, recompute=stage.recompute))

        if least == largest or peak(largest) <= self._room:
            return largest
        return least - 1 + bisect_right(range(least, largest), self._room, key=peak)

    def _in_flight(self, stages_left: int) -> Floats:
        """Return the most micro-batches that stages may have in flight, where they fit."""
        largest, kept = self._largest_in_flight(stages_left), self._kept(stages_left)
        block = self._block(self._layout.stages - stages_left)
        if stages_left == 1 or largest == self._least_in_flight(stages_left):
            return np.full((1, 1), float(largest))
        plain = self._most_held(stages_left, recompute=False)[block]
        replayed = self._most_held(stages_left, recompute=True)[block]
        return np.clip(np.floor(np.where(plain >= kept.held, plain, replayed)), 1, largest)

    def _most_held(self, stages_left: int, *, recompute: bool) -> Floats:
        return self._grid.most_held(self._kept(stages_left), self._memory_bytes, recompute=recompute)

    def _least_in_flight(self, stages_left: int) -> int:
        """Return the least cap worth having: for a rule that takes any number, that of eager 1F1B."""
        schedule = self._schedule
        if schedule in (ScheduleKind.WORK_CONSERVING, ScheduleKind.ZERO_BUBBLE):
            schedule = ScheduleKind.EAGER
        return most_in_flight(schedule, stages_left=stages_left, num_micro=self._num_micro)

    def _largest_in_flight(self, stages_left: int) -> int:
        """Return the largest number worth having: eager 1F1B has the least, or a quarter more at each stage.

        That many hide uneven stages nearly always; a number that is the same at neighbours hides nothing.
        """
        if self._schedule is ScheduleKind.EAGER:
            return _wide_in_flight(stages_left, self._num_micro, self.step)
        return most_in_flight(self._schedule, stages_left=stages_left, num_micro=self._num_micro)

    @cached_property
    def _by_first_s(self) -> Floats:
        """Return by the end of the first stage the least that the worst stage puts on the step."""
        if self._layout.stages == 1:
            return self._first_s[-1:]
        others = self._layout.stages - 1
        after = CutTable(partial(self._cost, first_reduction_s=float(self._first_reduction_s[0])))
        worst = np.maximum(self._first_s, after.worst(others))
        if self._schedule is ScheduleKind.ZERO_BUBBLE:
            return worst
        return np.maximum(worst, CutTable(self._way_back_s).worst(others) + self._first_reduction_s)

    @cached_property
    def _first_s(self) -> Floats:
        """Return by its end what the first stage puts on the step."""
        return np.asarray(self._busy_s(self._layout.stages)[0] + self._first_reduction_s)

    @cached_property
    def _first_reduction_s(self) -> Floats:
        return np.asarray(self._reduction_s[self._block(0)][0])

    def _cost(self, stages_left: int, *, first_reduction_s: float) -> Floats:
        """Return what stages put on the step: their reduction, or the way back and that of the first one."""
        block, busy = self._block(self._layout.stages - stages_left), self._busy_s(stages_left)
        reduced = np.asarray(busy + self._reduction_s[block])
        if self._schedule is ScheduleKind.ZERO_BUBBLE:
            return reduced
        return np.maximum(reduced, self._way_back_s(stages_left) + first_reduction_s)

    def _way_back_s(self, stages_left: int) -> Floats:
        """Return when the last gradient of stages is back at the first one, and its backward done."""
        index = self._layout.stages - stages_left
        back = self._work.backward_s[self._block(index)[0], None] + self._lead_s[index]
        return np.asarray(self._busy_s(stages_left) + back)

    def _block(self, index: int) -> Block:
        """Return which (first, last) a stage may have: each of the others has a segment at least."""
        room = self._work.num_segments - self._layout.stages + 1
        return slice(index, index + room), slice(index + 1, index + 1 + room)

    def _busy_s(self, stages_left: int) -> Floats:
        """Return the way to stages and all their work, with the optimizer's."""
        if stages_left not in self._busy:
            self._busy[stages_left] = self._worked_s(stages_left)
        return self._busy[stages_left]

    def _worked_s(self, stages_left: int) -> Floats:
        index, num_micro = self._layout.stages - stages_left, self._whole_micro
        block, lead_s = self._block(index), self._lead_s[index]
        kept, is_last = self._kept(stages_left), stages_left == 1
        grid = self._own[index]
        micro = grid.micro_s(kept, self._memory_bytes, is_last=is_last, block=block)
        busy = lead_s + num_micro * micro
        if index > 0:
            link, before_s = self._between.boundaries[index - 1], self._lead_s[index - 1]
            serial = transfer_s(link, 1.0) * self._work.boundary_bytes[block[0]]
            messages = (num_micro * serial)[:, None] + (before_s + link.latency_s)
            busy = np.maximum(busy, messages + grid.forward_s[block])
        if self._schedule is not ScheduleKind.ZERO_BUBBLE:
            busy = np.maximum(busy, lead_s + self._capped_s(stages_left, micro))
        return np.asarray(busy + self._work.forward_s[block[0], None] + self._optimizer_s(grid)[block])

    def _capped_s(self, stages_left: int, micro: Floats) -> Floats:
        """Return what bounds on the micro-batches in flight say; nothing where stages do not fit."""
        compute, index = self._work.compute_s, self._layout.stages - stages_left
        block, hops_s = self._block(index), 2 * (self._lead_s[-1] - self._lead_s[index])
        through = np.asarray((compute[-1] - compute[block[0]])[:, None] + hops_s)
        micro = np.where(np.isinf(micro), 0.0, micro)
        most = self._in_flight(stages_left)
        terms = capped_s(through, self._own[index].forward_s[block], micro, self._whole_micro, most)
        return reduce(np.maximum, terms)

    @cached_property
    def _reduction_s(self) -> Floats:
        replicas, params = self._layout.replicas, self._grid.param_bytes
        volume = reduction_volume(self._batch.virtual_replicas, replicas)
        return np.where(params > 0, self._between.sums.seconds(replicas, volume * params), 0.0)

    def _optimizer_s(self, grid: StageGrid) -> Floats:
        """The slowest optimizer step is no faster than a stage's own, and than the least possible."""
        own = grid.param_bytes * grid.work.optimizer_step_s_per_byte
        return np.maximum(own, least_optimizer_s(self._work, np.array(self._layout.stages)))

    def _least_peak(self, stages_left: int) -> Floats:
        kept, grid = self._kept(stages_left), self._grid
        rows, columns = self._block(self._layout.stages - stages_left)
        first, last = grid.first[rows], grid.last[:, columns]
        peak = peak_bytes(self._work, first, last, kept, recompute=False)
        if stages_left > 1:
            peak = np.minimum(peak, peak_bytes(self._work, first, last, kept, recompute=True))
        return np.where(first < last, peak, np.inf)

    def _kept(self, stages_left: int, in_flight: int = 0) -> Residency:
        return kept(
            self._batch,
            self._schedule,
            layout=self._layout,
            stages_left=stages_left,
            num_micro=self._num_micro,
            in_flight=in_flight or self._least_in_flight(stages_left),
        )


stage_cutter = lru_cache(maxsize=48)(StageCutter)
"""The same object for equal questions, as long as few others come between."""


def _wide_in_flight(stages_left: int, num_micro: int, step: float) -> int:
    return min(1 + int(step * (stages_left - 1)), num_micro)
