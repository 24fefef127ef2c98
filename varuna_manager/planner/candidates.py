"""What the search may choose from: batch shapes, layouts, schedules, in a fixed order."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from varuna_manager.planner.bounds import AnyCutBound
from varuna_manager.planner.pipeline import shares
from varuna_manager.planner.pools import SlotPool, pool_for
from varuna_manager.planner.request import PlanRequest
from varuna_manager.planner.workload import Workload, workload
from varuna_runtime.spec.batches import default_virtual_replicas, num_micro_batches
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.layout import BatchShape, Layout, ScheduleKind

SCHEDULES = (ScheduleKind.ONE_F_ONE_B, ScheduleKind.EAGER, ScheduleKind.WORK_CONSERVING)
"""What `auto` chooses from, in order of preference: less memory first.

The others are by name only: GPipe was faster than the work-conserving rule in no simulation, Varuna's list
in few; no profile tells the two halves of a backward apart, which zero-bubble lives on.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A layout and schedule on a pool; `bound_s` holds whatever its cuts will be."""

    shape: int  # index of the batch shape
    pool: SlotPool
    layout: Layout
    schedule: ScheduleKind
    num_nodes: int
    num_micro: int  # largest share of a replica
    bound_s: float

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
    if request.batch is not None:
        return (Shape(batch=request.batch, work=_work(request, request.batch.micro_batch_size)),)
    spec, found = request.spec, []
    for size in _micro_batch_sizes(request):
        num_micro = num_micro_batches(spec.batch_size, size)
        virtual = spec.virtual_replicas
        if virtual == "auto":
            virtual = default_virtual_replicas(spec.batch_size, size, spec.nodes.max)
        if virtual <= num_micro:
            batch = BatchShape(batch_size=spec.batch_size, micro_batch_size=size, virtual_replicas=virtual)
            found.append(Shape(batch=batch, work=_work(request, size)))
    return tuple(found)


def _work(request: PlanRequest, micro_batch_size: int) -> Workload:
    return workload(
        request.profile,
        micro_batch_size,
        shard_optimizer=request.spec.shard_optimizer,
        offload_optimizer=request.spec.offload_optimizer,
    )


def candidates(spec: JobSpec, choices: Sequence[Shape], found: Sequence[SlotPool]) -> tuple[Candidate, ...]:
    """Return every layout and schedule the pools have room for, most promising first."""
    every = [c for index, shape in enumerate(choices) for c in _of_shape(spec, index, shape, found)]
    return tuple(sorted(every, key=lambda c: (c.bound_s, *c.preference, -c.pool.unit_slots)))


def _of_shape(spec: JobSpec, index: int, shape: Shape, found: Sequence[SlotPool]) -> Iterator[Candidate]:
    most = max((pool.num_slots for pool in found), default=0)
    sizes = sorted({pool.unit_slots for pool in found}, reverse=True)
    is_split = spec.schedule is ScheduleKind.ZERO_BUBBLE
    bounds: dict[int, AnyCutBound] = {}
    for replicas in _choices(spec.layout.replicas, min(most, shape.batch.virtual_replicas)):
        num_micro = max(shares(shape.batch, replicas))
        if num_micro not in bounds:
            bounds[num_micro] = AnyCutBound(shape.work, num_micro, is_split=is_split)
        for stages in _choices(spec.layout.stages, min(most // replicas, shape.work.num_segments)):
            layout = Layout(stages=stages, replicas=replicas)
            bound_s = bounds[num_micro].step_s(stages, replicas=replicas)
            for pool in filter(None, (pool_for(layout, found, size) for size in sizes)):
                num_nodes = pool.num_nodes(layout)
                for schedule in _schedules(spec, stages):
                    yield Candidate(
                        shape=index,
                        pool=pool,
                        layout=layout,
                        schedule=schedule,
                        num_nodes=num_nodes,
                        num_micro=num_micro,
                        bound_s=bound_s,
                    )


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
