"""Emulated jobs of eight segments, their layouts, and what the planner predicts for them. Runs nothing."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from benchmarks.emulated import Times
from varuna_manager.planner.pipeline import (
    Boundary,
    Pipeline,
    StageTiming,
    agreement_s,
    reduction_volume,
    shares,
)
from varuna_manager.planner.simulate import simulate
from varuna_manager.planner.workload import transfer_s
from varuna_runtime.spec.batches import default_virtual_replicas
from varuna_runtime.spec.layout import BatchShape, Layout, ScheduleKind
from varuna_runtime.spec.profile import LinkCost
from varuna_runtime.spec.schedule import OpKind

SEGMENTS = 8
UNIT_S = 0.04  # a segment's forward, and each half of its backward
FLOAT_BYTES = 4
EVEN = (1.0,) * SEGMENTS
RAMP = (0.6, 0.7, 0.8, 0.9, 1.1, 1.2, 1.3, 1.4)
SMALL, MIDDLE, LARGE, HUGE = 1 << 15, 1 << 17, 1 << 18, 1 << 19  # floats of an activation
WEIGHTS = (
    1 << 19
)  # of a segment, where sums of gradients count: two blocks, so that two replicas own one each
GPIPE, ONE, EAGER = ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B, ScheduleKind.EAGER
VARUNA, KEEN, SPLIT = ScheduleKind.VARUNA, ScheduleKind.WORK_CONSERVING, ScheduleKind.ZERO_BUBBLE
P4, P8 = Layout(stages=4, replicas=1), Layout(stages=8, replicas=1)
P4D2, P8D2 = Layout(stages=4, replicas=2), Layout(stages=8, replicas=2)


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """What every layout of it has to do."""

    width: int
    samples: int = 12
    rows: int = 1  # of a micro-batch; the last one may have fewer
    pace: tuple[float, ...] = EVEN  # of each segment, in units
    num_weights: int = 1  # of a segment

    @property
    def message_bytes(self) -> int:
        """What crosses a boundary."""
        return FLOAT_BYTES * self.width * self.rows

    @property
    def last_share(self) -> float:
        """Rows of the last micro-batch over those of the others."""
        return (self.samples % self.rows or self.rows) / self.rows

    def times(self, segment: int) -> Times:
        """Return what a segment takes."""
        unit_s = UNIT_S * self.pace[segment]
        return Times(forward_s=unit_s, input_s=unit_s, weight_s=unit_s)

    def __str__(self) -> str:
        """Return it for a table."""
        parts = [f"{self.samples} x {self.message_bytes >> 10} KB"]
        parts += ["uneven"] if self.pace != EVEN else []
        parts += ["short last"] if self.samples % self.rows else []
        parts += [f"{FLOAT_BYTES * self.num_weights >> 20} MB of weights"] if self.num_weights > 1 else []
        return ", ".join(parts)


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class StageSize:
    """What an op costs beyond its sleep depends on."""

    num_segments: int
    width: int
    num_weights: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Lone:
    """Measured on one rank alone: seconds of an op beyond its sleep, and of a step beside its ops."""

    beyond_s: Mapping[OpKind, float]
    beside_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Constants:
    """What a run measured before it predicted."""

    link: LinkCost
    send_s: Mapping[int, float]  # to hand over a message of so many bytes
    lone: Mapping[StageSize, Lone]


@dataclass(frozen=True, slots=True, kw_only=True)
class Emulation:
    """One job under one layout and schedule."""

    job: Job
    layout: Layout
    schedule: ScheduleKind
    recompute: bool = False

    @property
    def batch(self) -> BatchShape:
        """As `ours.engine_of` chooses it."""
        virtual = default_virtual_replicas(self.job.samples, self.job.rows, self.layout.world_size)
        return BatchShape(
            batch_size=self.job.samples, micro_batch_size=self.job.rows, virtual_replicas=virtual
        )

    @property
    def stage_size(self) -> StageSize:
        """Of each of its stages."""
        return StageSize(
            num_segments=SEGMENTS // self.layout.stages,
            width=self.job.width * self.job.rows,
            num_weights=self.job.num_weights,
        )

    def __str__(self) -> str:
        """Return it for a table; no two of them read alike."""
        again = " recompute" if self.recompute else ""
        return f"P={self.layout.stages} D={self.layout.replicas} {self.schedule}{again}: {self.job}"


def emulations() -> tuple[Emulation, ...]:
    """Return what is measured: every kind of program, and all that makes layouts differ."""
    small, middle, large, huge = (Job(width=width) for width in (SMALL, MIDDLE, LARGE, HUGE))
    few, odd = replace(middle, samples=3), replace(middle, samples=13)
    ramp, heavy = replace(middle, pace=RAMP), replace(middle, num_weights=WEIGHTS)
    short = Job(width=MIDDLE // 2, samples=23, rows=2)
    return (
        *_each(small, (P4, P8, P4D2), (ONE, KEEN, SPLIT)),
        *_each(middle, (P4, P8), tuple(ScheduleKind)),
        *_each(middle, (P4D2,), (ONE, EAGER, KEEN, SPLIT)),
        *_each(middle, (P8D2,), (ONE, KEEN)),
        *_each(large, (P4, P4D2), (ONE, KEEN)),
        *_each(large, (P8,), (GPIPE, ONE, EAGER, KEEN, SPLIT)),
        *_each(huge, (P4,), (ONE, EAGER, VARUNA, KEEN)),
        *_each(ramp, (P4, P8), (ONE, KEEN, SPLIT)),
        *_each(middle, (P4, P8), (ONE, VARUNA, KEEN), recompute=True),
        *_each(few, (P4, P8), (GPIPE, ONE, SPLIT)),
        *_each(odd, (P4D2,), (ONE, KEEN)),
        *_each(heavy, (P4, P4D2), (ONE, KEEN)),
        *_each(short, (P4,), (ONE, KEEN)),
    )


def _each(
    job: Job, layouts: Iterable[Layout], schedules: Iterable[ScheduleKind], *, recompute: bool = False
) -> list[Emulation]:
    kinds = tuple(schedules)
    return [
        Emulation(job=job, layout=layout, schedule=kind, recompute=recompute)
        for layout in layouts
        for kind in kinds
    ]


def predicted_s(emulation: Emulation, constants: Constants) -> float:
    """Return what the simulator says."""
    return simulate(pipeline_of(emulation, constants)).step_s


def pipeline_of(emulation: Emulation, constants: Constants) -> Pipeline:
    """Return the candidate as times."""
    job, layout, link = emulation.job, emulation.layout, constants.link
    boundary = Boundary(serial_s=transfer_s(link, job.message_bytes), latency_s=link.latency_s)
    return Pipeline(
        schedule=emulation.schedule,
        stages=tuple(_stage(emulation, constants, s) for s in range(layout.stages)),
        boundaries=(boundary,) * (layout.stages - 1),
        micro_batches=shares(emulation.batch, layout.replicas),
        agreement_s=agreement_s(layout, link),
        last_compute=job.last_share,
        last_bytes=job.last_share,
        interfaces=tuple((rank, rank) for rank in range(layout.world_size)),  # each on a node of its own
    )


def _stage(emulation: Emulation, constants: Constants, stage: int) -> StageTiming:
    job, layout = emulation.job, emulation.layout
    each = SEGMENTS // layout.stages
    lone = constants.lone[emulation.stage_size]
    work = [job.times(each * stage + i) for i in range(each)]
    send_s = constants.send_s[job.message_bytes]
    is_last = stage == layout.stages - 1
    return StageTiming(
        forward_s=sum(t.forward_s for t in work)
        + lone.beyond_s[OpKind.FORWARD]
        + (0.0 if is_last else send_s),
        backward_s=sum(t.backward_s for t in work)
        + _beyond_backward_s(lone, emulation.schedule)
        + (send_s if stage > 0 else 0.0),
        recompute=emulation.recompute and not is_last,
        reduction_s=_reduction_s(emulation, constants.link, each),
        optimizer_s=lone.beside_s,
    )


def _beyond_backward_s(lone: Lone, schedule: ScheduleKind) -> float:
    if schedule is ScheduleKind.ZERO_BUBBLE:
        return lone.beyond_s[OpKind.INPUT] + lone.beyond_s[OpKind.WEIGHT]
    return lone.beyond_s[OpKind.BACKWARD]


def _reduction_s(emulation: Emulation, link: LinkCost, num_segments: int) -> float:
    replicas = emulation.layout.replicas
    if replicas == 1:
        return 0.0
    num_bytes = FLOAT_BYTES * num_segments * emulation.job.num_weights
    volume = reduction_volume(emulation.batch.virtual_replicas, replicas)
    return 2 * (replicas - 1) * link.latency_s + transfer_s(link, num_bytes * volume)
