"""What the search may choose from: batch shapes, layouts, schedules, in a fixed order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from varuna_manager.planner.cuts import CutTable
from varuna_manager.planner.grid import grid_of
from varuna_manager.planner.layout_bounds import Columns, Ints, LayoutBound, layout_bound
from varuna_manager.planner.least_busy import LeastKept, least_busy
from varuna_manager.planner.memory import most_sums
from varuna_manager.planner.objective import Use, least_use, objective, use_of
from varuna_manager.planner.pipeline import most_micro_batches, most_whole, reduction_volume
from varuna_manager.planner.pools import SlotPool, pools_for
from varuna_manager.planner.request import PlanRequest
from varuna_manager.planner.workload import Floats, Workload, workload
from varuna_runtime.spec.batches import default_virtual_replicas, num_micro_batches
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.layout import BatchShape, Layout, ScheduleKind
from varuna_runtime.spec.profile import Profile

SCHEDULES = (ScheduleKind.ONE_F_ONE_B, ScheduleKind.EAGER, ScheduleKind.WORK_CONSERVING)
"""What `auto` chooses from, in order of preference: less memory first.

The others are by name only: GPipe was faster than the work-conserving rule in no simulation, Varuna's list
in few than eager 1F1B with as many in flight. What zero-bubble gains is little against what two halves of a
backward take longer in a running pipeline than measured alone.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A layout and schedule on a pool."""

    shape: int  # index of the batch shape
    pool: SlotPool
    layout: Layout
    schedule: ScheduleKind
    num_nodes: int
    num_micro: int  # largest share of a replica

    @property
    def preference(self) -> tuple[int, ...]:
        """What decides between equally fast ones: fewer nodes, stages, replicas, then the schedule."""
        layout = self.layout
        order = SCHEDULES.index(self.schedule) if self.schedule in SCHEDULES else len(SCHEDULES)
        return (self.num_nodes, layout.stages, layout.replicas, order, self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """A batch shape with the model's costs at its micro-batch size."""

    batch: BatchShape
    work: Workload


def shapes(request: PlanRequest) -> tuple[Shape, ...]:
    """Return the recorded batch shape, or every one a first plan may choose; larger micro-batches first."""
    spec = request.spec
    batches = _batches(request) if request.batch is None else (request.batch,)
    return _shapes(request.profile, batches, spec.shard_optimizer, spec.offload_optimizer)


def _batches(request: PlanRequest) -> tuple[BatchShape, ...]:
    spec, found = request.spec, []
    for size in _micro_batch_sizes(request):
        virtual = spec.virtual_replicas
        if virtual == "auto":
            virtual = default_virtual_replicas(spec.batch_size, size, spec.nodes.max)
        if virtual <= num_micro_batches(spec.batch_size, size):
            batch = BatchShape(batch_size=spec.batch_size, micro_batch_size=size, virtual_replicas=virtual)
            found.append(batch)
    return tuple(found)


@lru_cache(maxsize=16)
def _shapes(
    profile: Profile, batches: tuple[BatchShape, ...], shard_optimizer: bool, offload_optimizer: bool
) -> tuple[Shape, ...]:
    """Return the shapes; equal questions get the same objects, by which more is kept for the next plan."""
    return tuple(
        Shape(
            batch=batch,
            work=workload(
                profile,
                batch.micro_batch_size,
                last_size=batch.batch_size % batch.micro_batch_size or None,
                shard_optimizer=shard_optimizer,
                offload_optimizer=offload_optimizer,
            ),
        )
        for batch in batches
    )


class Layouts:
    """Every layout of every shape that the pools have room for, most promising first.

    Promising is a low score of the job's objective; ties go to fewer ranks, then fewer stages, then larger
    micro-batches.
    """

    def __init__(self, request: PlanRequest, choices: Sequence[Shape], found: Sequence[SlotPool]) -> None:
        self._parts = [_OfShape(request.spec, shape, found) for shape in choices]
        index = np.concatenate([np.arange(len(part.rows)) for part in self._parts])
        shape = np.concatenate([np.full(len(part.rows), i) for i, part in enumerate(self._parts)])
        stages = np.concatenate([part.rows.stages for part in self._parts])
        replicas = np.concatenate([part.rows.replicas for part in self._parts])
        bound_s = np.concatenate([part.bound_s for part in self._parts])
        num_slots = stages * replicas
        use = least_use(num_slots, found)
        self._objective = objective(request, bound_s, use)
        score = self._objective.scores(bound_s, use)
        order = np.lexsort((shape, stages, num_slots, score))
        self.bound_s, self.score = bound_s[order], score[order]  # hold for every candidate of that layout
        self._shape, self._index = shape[order], index[order]
        self._use = Use(num_nodes=use.num_nodes[order], dollars_per_hour=use.dollars_per_hour[order])

    def __len__(self) -> int:
        """Number of layouts."""
        return len(self.bound_s)

    def shape(self, row: int) -> int:
        """Return the index of the shape of a row."""
        return int(self._shape[row])

    def layout(self, row: int) -> Layout:
        """Return the layout of a row."""
        rows, index = self._parts[self.shape(row)].rows, self._index[row]
        return Layout(stages=int(rows.stages[index]), replicas=int(rows.replicas[index]))

    def score_of(self, candidate: Candidate, step_s: float) -> float:
        """Return the score of a candidate that takes so long for a step."""
        return self._score(step_s, use_of(candidate.pool, candidate.layout))

    def value(self, score: float, batch_size: int) -> float:
        """Return what a score is worth, in the units of the objective."""
        return self._objective.value(score, batch_size)

    def sharper_score(self, row: int) -> float:
        """Return the score of the better bound: no candidate of that layout has a lower one."""
        return self._score(self.sharper_s(row), self._use.row(row))

    def _score(self, step_s: float, use: Use) -> float:
        return float(self._objective.scores(np.array([step_s]), use)[0])

    def sharper_s(self, row: int) -> float:
        """Return a better bound, at the cost of a table of cuts that many rows have in common."""
        return max(float(self.bound_s[row]), self._parts[self.shape(row)].sharper_s(int(self._index[row])))


class _OfShape:
    """The layouts of one shape, and bounds for each."""

    def __init__(self, spec: JobSpec, shape: Shape, found: Sequence[SlotPool]) -> None:
        self._virtual, self._grid = shape.batch.virtual_replicas, grid_of(shape.work)
        self._memory_bytes = max((pool.memory_bytes for pool in found), default=0)
        unit_slots = max((pool.unit_slots for pool in found), default=1)
        is_split = spec.schedule is ScheduleKind.ZERO_BUBBLE
        self._bound = layout_bound(shape.work, self._virtual, unit_slots=unit_slots, is_split=is_split)
        self.rows = _columns(spec, shape, found, unit_slots)
        self._most = int(self.rows.replicas.max(initial=1))
        self._last_s, self._peers = self._bound.last_s(self.rows), self._bound.peers(self.rows)
        self.bound_s = self._bound.step_s(self.rows, self._least_micro_s())

    def sharper_s(self, index: int) -> float:
        """As the coarse bound, but for the best of all cuts."""
        stages, replicas = int(self.rows.stages[index]), int(self.rows.replicas[index])
        latency_s, byte_s = (float(column[index]) for column in self._peers)
        least_s = _least_by_stages(
            self._bound,
            self._kept(most_sums(self._virtual, replicas) + 1, int(self.rows.num_micro[index])),
            speed=float(self.rows.speed[index]),
            latency_s=2 * (replicas - 1) * latency_s,
            byte_s=byte_s * reduction_volume(self._virtual, replicas),
            most_stages=min(_power_above(stages), self._grid.work.num_segments),
        )
        return least_s[stages - 1] + float(self._last_s[index])

    def _least_micro_s(self) -> Floats:
        owned = -(-self._virtual // self._most)
        # Of any D: sums where a share is a whole part of the tree, and the final ones.
        busy = least_busy(self._kept(owned.bit_length() + 1, int(self.rows.num_micro.min(initial=2**31))))
        most = int(self.rows.stages.max(initial=0))
        return np.array([np.inf, *(busy.micro_s(n) for n in range(1, most + 1))])

    def _kept(self, gradient_copies: int, num_micro: int) -> LeastKept:
        return LeastKept(
            grid=self._grid,
            memory_bytes=self._memory_bytes,
            replicas=self._most if self._grid.work.is_optimizer_sharded else 1,
            gradient_copies=gradient_copies,
            num_micro=num_micro,
        )


@lru_cache(maxsize=4096)
def _least_by_stages(
    bound: LayoutBound,
    kept: LeastKept,
    *,
    speed: float,
    latency_s: float,
    byte_s: float,
    most_stages: int,
) -> tuple[float, ...]:
    """Return for 1 to `most_stages` stages the least that the worst of them puts on the step."""
    busy, work, params = least_busy(kept), kept.grid.work, kept.grid.param_bytes
    reduction_s = np.where(params > 0, latency_s + byte_s * params, 0.0)
    way_s = bound.way_s[:, None] / speed + bound.first_s(latency_s, byte_s)
    ends_s = np.maximum(way_s, work.forward_s[:, None] / speed + reduction_s)
    table = CutTable(lambda left: ends_s + busy.share_s(left) / speed)
    return tuple(float(table.worst(stages)[0]) for stages in range(1, most_stages + 1))


def _power_above(count: int) -> int:
    return 1 << (count - 1).bit_length()


def candidates(
    spec: JobSpec, choices: Sequence[Shape], found: Sequence[SlotPool], *, shape: int, layout: Layout
) -> Iterator[Candidate]:
    """Yield every pool and schedule for a layout."""
    num_micro = most_micro_batches(choices[shape].batch, layout.replicas)
    for pool in pools_for(layout, found):
        num_nodes = pool.num_nodes(layout)
        for schedule in _schedules(spec, layout.stages):
            yield Candidate(
                shape=shape,
                pool=pool,
                layout=layout,
                schedule=schedule,
                num_nodes=num_nodes,
                num_micro=num_micro,
            )


def modest_layouts(spec: JobSpec, shape: Shape, found: Sequence[SlotPool]) -> Iterator[Layout]:
    """Yield for each number of stages, most first, the layouts that are likely to need least memory.

    More replicas have fewer sums each where they cut the tree evenly; a single one has no exchange.
    """
    stages, replicas = _grid(spec, shape, found)
    for num in np.unique(stages)[::-1]:
        there = replicas[stages == num]
        most = int(there.max())
        likely = {int(there.min()), most, *(1 << n for n in range(most.bit_length()))}
        for count in sorted(likely & set(there.tolist()), reverse=True):
            yield Layout(stages=int(num), replicas=count)


def _columns(spec: JobSpec, shape: Shape, found: Sequence[SlotPool], unit_slots: int) -> Columns:
    stages, replicas = _grid(spec, shape, found)
    counts = np.unique(replicas)
    num_micro = np.zeros(int(replicas.max(initial=0)) + 1, dtype=np.int64)
    num_micro[counts] = [_costs(shape.batch, count)[0][1] for count in counts.tolist()]
    if not shape.work.is_optimizer_sharded:
        is_useful = np.isin(replicas, _useful_replicas(shape.batch, counts.tolist()))
        stages, replicas = stages[is_useful], replicas[is_useful]
    return Columns(
        stages=stages,
        replicas=replicas,
        num_micro=num_micro[replicas],
        speed=_fastest(found, stages * replicas),
        is_apart=stages * replicas > unit_slots,
    )


def _useful_replicas(batch: BatchShape, counts: Sequence[int]) -> list[int]:
    """Return the counts without those that fewer replicas do as well as, whatever the stages.

    These have as many micro-batches each, and do not cut the tree of sums more unevenly: they send no more,
    keep no more, and need fewer slots.
    """
    useful: list[int] = []
    seen: list[tuple[tuple[int, int], float, int]] = []
    for count in counts:
        micro, sent, sums = _costs(batch, count)
        if any(n == micro and at_most <= sent and fewest <= sums for n, at_most, fewest in seen):
            continue
        seen = [one for one in seen if one[0] == micro] + [(micro, sent, sums)]
        useful.append(count)
    return useful


@lru_cache(maxsize=2**14)
def _costs(batch: BatchShape, replicas: int) -> tuple[tuple[int, int], float, int]:
    """Return the largest shares, what is sent and the sums that are kept."""
    micro = most_micro_batches(batch, replicas), most_whole(batch, replicas)
    virtual = batch.virtual_replicas
    return micro, reduction_volume(virtual, replicas), most_sums(virtual, replicas)


def _grid(spec: JobSpec, shape: Shape, found: Sequence[SlotPool]) -> tuple[Ints, Ints]:
    """Return stages and replicas of all layouts there is room for."""
    most = max((pool.num_slots for pool in found), default=0)
    by_stages = [
        (stages, _choices(spec.layout.replicas, min(most // stages, shape.batch.virtual_replicas)))
        for stages in _choices(spec.layout.stages, min(most, shape.work.num_segments))
    ]
    empty = np.zeros(0, dtype=np.int64)
    stages = np.concatenate([empty, *(np.full(len(d), p, dtype=np.int64) for p, d in by_stages)])
    replicas = np.concatenate([empty, *(np.array(d, dtype=np.int64) for _, d in by_stages)])
    return stages, replicas


def _fastest(found: Sequence[SlotPool], num_slots: Ints) -> Floats:
    """Return the speed of the fastest stage of any pool with room for as many slots."""
    speed = np.zeros(len(num_slots))
    for pool in found:
        np.maximum(speed, pool.top_speed, out=speed, where=num_slots <= pool.num_slots)
    return speed


def _choices(pinned: int | str, most: int) -> range:
    if isinstance(pinned, int):
        return range(pinned, pinned + 1) if pinned <= most else range(0)
    return range(1, most + 1)


def _schedules(spec: JobSpec, stages: int) -> tuple[ScheduleKind, ...]:
    if isinstance(spec.schedule, ScheduleKind):
        return (spec.schedule,)
    return SCHEDULES if stages > 1 else SCHEDULES[:1]


def _micro_batch_sizes(request: PlanRequest) -> tuple[int, ...]:
    wanted = request.spec.micro_batch_size
    if isinstance(wanted, int):
        return (min(wanted, request.spec.batch_size),)
    most = request.spec.batch_size
    sizes = [at.micro_batch_size for at in request.profile.by_micro_batch if at.micro_batch_size <= most]
    return tuple(sorted(sizes, reverse=True)) or (most,)
