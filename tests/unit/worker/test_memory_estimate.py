"""The planner's memory model against what torch's allocator really hands out, on uneven stages."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import nn
from torch.profiler import ProfilerActivity

from tests.support import toys
from tests.support.fleet import settings_of
from tests.support.planning import job
from varuna_manager.planner.memory import MARGIN, kept, peak_bytes, residency
from varuna_manager.planner.workload import Workload, workload
from varuna_runtime.partition import PartitionedModel, cut
from varuna_runtime.spec.layout import BatchShape, Layout, ScheduleKind, Stage
from varuna_runtime.worker.build import build_stage
from varuna_runtime.worker.profiling import measure
from varuna_runtime.worker.stage import MicroBatch
from varuna_runtime.worker.training import Training

torch.set_num_threads(1)

CPU = torch.device("cpu")
EDGES = (0, 1, 3, 5, 8)
ROWS, NUM_MICRO = 64, 6
BATCH = BatchShape(batch_size=ROWS * NUM_MICRO, micro_batch_size=ROWS, virtual_replicas=1)


def wide_training() -> Training:
    def model() -> nn.Module:
        bodies = [nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.Linear(256, 64)) for _ in range(7)]
        return nn.Sequential(nn.Linear(toys.WIDTH, 64), *bodies[1:], bodies[0])

    return toys.mlp_training(
        model=model,
        loss=lambda output, batch: output.square().mean(),
        scheduler=None,
        batch_size=BATCH.batch_size,
    )


@pytest.fixture(scope="module")
def measured() -> tuple[Training, PartitionedModel, Workload]:
    training = wide_training()
    model = cut(training.model)
    ticks = iter(range(10**6))
    spec = job(batch_size=BATCH.batch_size, micro_batch_size=ROWS)
    found = measure(training, model, spec, CPU, clock=lambda: float(next(ticks)), budget_s=1e9)
    return training, model, workload(found, ROWS)


def estimate(work: Workload, stage: Stage, stages_left: int) -> float:
    resident = kept(
        BATCH,
        ScheduleKind.ONE_F_ONE_B,
        layout=Layout(stages=len(EDGES) - 1, replicas=1),
        stages_left=stages_left,
        num_micro=NUM_MICRO,
    )
    return float(peak_bytes(work, stage.first, stage.last, resident, recompute=stage.recompute))


def allocated_peak(training: Training, model: PartitionedModel, stage: Stage, held: int) -> int:
    """Return the most bytes alive while one stage trains a step with `held` micro-batches in flight."""
    with torch.profiler.profile(activities=[ProfilerActivity.CPU], profile_memory=True) as prof:
        train_stage(training, model, stage, held)
    changes = [e for e in prof.profiler.kineto_results.events() if e.name() == "[memory]"]  # type: ignore[union-attr]
    alive = peak = 0
    for change in sorted(changes, key=lambda e: e.start_ns()):
        alive += change.nbytes()
        peak = max(peak, alive)
    return peak


def train_stage(training: Training, model: PartitionedModel, stage: Stage, held: int) -> None:
    built = build_stage(training, settings_of(training, BATCH), model, stage, CPU)
    is_last = stage.last == model.num_segments
    width = 64 if stage.first else toys.WIDTH
    micros = [
        MicroBatch(step=0, index=i, rows=ROWS, virtual_replica=0, ends_virtual_replica=i == NUM_MICRO - 1)
        for i in range(NUM_MICRO)
    ]
    built.runner.begin(1, range(1))

    def forward(micro: MicroBatch) -> None:
        values = torch.randn(ROWS, width).requires_grad_(stage.first > 0)
        built.runner.forward(micro, (values,), (values, values) if is_last else None)

    def backward(micro: MicroBatch) -> None:
        if stage.recompute:
            built.runner.recompute(micro)
        gradients: Any = None if is_last else (torch.randn(ROWS, 64),)
        built.runner.backward(micro, gradients)

    for done, micro in enumerate(micros):
        forward(micro)
        if done >= held - 1:
            backward(micros[done - held + 1])
    for micro in micros[NUM_MICRO - held + 1 :]:
        backward(micro)
    for parameter in (p for segment in built.segments for _, p in segment.parameters):
        parameter.grad = parameter.detach()  # its own buffer is there since the stage was built
    built.optimizer.step(0.0)


@pytest.mark.parametrize("recompute", [False, True])
def test_every_uneven_stage_stays_below_its_estimate_and_not_far(
    measured: tuple[Training, PartitionedModel, Workload], recompute: bool
) -> None:
    training, model, work = measured
    for s, (first, last) in enumerate(pairwise(EDGES)):
        stage = Stage(first=first, last=last, recompute=recompute and last < model.num_segments)
        left = len(EDGES) - 1 - s
        guess, seen = estimate(work, stage, left), allocated_peak(training, model, stage, left)
        assert seen <= guess * MARGIN, f"stage {s}: {seen} allocated, {guess} thought"
        assert seen >= guess * 0.6, f"stage {s}: {seen} allocated, {guess} thought"


@pytest.mark.parametrize("schedule", ScheduleKind)
def test_the_estimate_never_falls_with_more_micro_batches_or_more_of_them_in_flight(
    measured: tuple[Training, PartitionedModel, Workload], schedule: ScheduleKind
) -> None:
    _, _, work = measured
    for recompute in (False, True):
        in_m = [[_peak(work, schedule, left, m, recompute) for m in range(1, 12)] for left in range(1, 6)]
        assert all(row == sorted(row) for row in in_m)
        assert all(list(column) == sorted(column) for column in zip(*in_m, strict=True))
        each = (residency(BATCH, replicas=1, held=n) for n in range(1, 12))
        held = [float(peak_bytes(work, 2, 5, one, recompute=recompute)) for one in each]
        assert held == sorted(set(held))


def _peak(work: Workload, schedule: ScheduleKind, left: int, num_micro: int, recompute: bool) -> float:
    resident = kept(
        BATCH, schedule, layout=Layout(stages=5, replicas=1), stages_left=left, num_micro=num_micro
    )
    return float(peak_bytes(work, 2, 5, resident, recompute=recompute))
