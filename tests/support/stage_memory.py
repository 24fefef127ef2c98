"""One stage of a plan trained alone, by links that let it hold as much as its program ever may."""

from collections import deque
from dataclasses import replace

import torch
from torch import Tensor

from tests.support.fleet import settings_of
from varuna_runtime.partition import PartitionedModel
from varuna_runtime.spec.layout import Plan, ScheduleKind
from varuna_runtime.worker.build import build_stage
from varuna_runtime.worker.data import SampleSource
from varuna_runtime.worker.memory_probe import taken
from varuna_runtime.worker.pipeline import Pipeline
from varuna_runtime.worker.reduce import Sum
from varuna_runtime.worker.signals import Waiting
from varuna_runtime.worker.step_share import step_share
from varuna_runtime.worker.training import Training

CPU = torch.device("cpu")


class SlowestLink:
    """A neighbour on either side; an answer comes only when the stage can do nothing else."""

    def __init__(
        self, rank: int, entering: tuple[int, ...], leaving: tuple[int, ...], *, is_last: bool
    ) -> None:
        self.rank = rank
        self._sends = "gradients" if is_last else "activations"
        self._shapes = {"activations": entering, "gradients": leaving}
        self._queues: dict[str, deque[Tensor]] = {tag: deque() for tag in self._shapes}
        self._given = dict.fromkeys(self._shapes, 0)
        self._forwards = 0

    def begin(self) -> None:
        self._given = dict.fromkeys(self._shapes, 0)
        self._forwards = 0

    def release_all(self, num_micro: int, *, is_first: bool) -> None:
        """Send every activation at once, and then every gradient; what waits takes no memory."""
        is_activation = not is_first and not self._given["activations"]
        tag = "activations" if is_activation else "gradients"
        for _ in range(num_micro - self._given[tag]):
            self._given[tag] += 1
            number = torch.ones(1).expand(self._shapes[tag])
            self._queues[tag].append(number.requires_grad_(is_activation))

    def release(self, num_micro: int, *, is_first: bool) -> None:
        """Send an activation as long as the stage takes them, else a gradient."""
        has_room = self._given["activations"] == self._forwards
        is_activation = not is_first and has_room and self._given["activations"] < num_micro
        tag = "activations" if is_activation else "gradients"
        self._given[tag] += 1
        self._queues[tag].append(torch.randn(self._shapes[tag]).requires_grad_(is_activation))

    def send(self, to: int, tag: str, tensors: tuple[Tensor, ...], *, can_wait: bool = False) -> None:
        self._forwards += tag == self._sends

    def poll(self, source: int, tag: str) -> tuple[Tensor, ...] | None:
        return (self._queues[tag].popleft(),) if self._queues[tag] else None


def allocated_peak(training: Training, model: PartitionedModel, plan: Plan, stage: int, width: int) -> int:
    """Return the most bytes alive while one stage alone trains two steps; cuts are `width` wide."""
    return taken(CPU, lambda: _train(training, model, plan, stage, width))[0].peak_bytes


def _train(training: Training, model: PartitionedModel, plan: Plan, stage: int, width: int) -> None:
    settings = settings_of(training, plan.batch)
    built = build_stage(training, settings, model, plan.stages[stage], CPU)
    source = SampleSource(
        training.dataset,
        collate=training.collate,
        seed=settings.seed,
        shuffle=settings.shuffle,
        batch_size=settings.batch_size,
        total_samples=settings.total_samples,
    )
    rows = plan.batch.micro_batch_size
    is_last = stage == plan.layout.stages - 1
    link = SlowestLink(stage, (rows, width), (rows, width), is_last=is_last)
    is_split = plan.schedule is ScheduleKind.ZERO_BUBBLE  # owes most where gradients come in a row
    release = link.release_all if is_split else link.release
    named = replace(training, arguments=model.arguments)
    pipeline = Pipeline(named, plan, link, source, built.runner, settings, CPU)  # type: ignore[arg-type]
    for step in range(2):
        share = step_share(
            plan,
            step=step,
            num_samples=source.num_samples(step),
            replica=0,
            exactness=settings.exactness,
        )
        link.begin()
        built.runner.begin(share.virtual, share.owned)
        for signal in pipeline.run(share.micros):
            if isinstance(signal, Waiting):
                release(len(share.micros), is_first=stage == 0)
        for at, accumulator in enumerate(built.accumulators):
            built.gradients.assign(at, Sum(accumulator.result(), accumulator.touched), 1.0)
        built.gradients.partials()
        built.optimizer.step(0.0)
