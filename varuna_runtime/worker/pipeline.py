"""Executes a stage's program over the link: receive, ready-rule, op, send; it never ends a step."""

from collections import deque
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from varuna_runtime.spec.job import Exactness
from varuna_runtime.spec.layout import Plan
from varuna_runtime.spec.rng import inputs_key
from varuna_runtime.spec.schedule import Arrivals, Op, OpKind, next_op, program
from varuna_runtime.worker.data import SampleSource
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.randomness import seed_generators
from varuna_runtime.worker.signals import PROGRESSED, Stepping, Waiting
from varuna_runtime.worker.stage import MicroBatch, StageRunner
from varuna_runtime.worker.training import ResolvedTraining, Training

_NO_GRADIENT = torch.empty(0, dtype=torch.bool)  # stands for None on the wire; no gradient is boolean


class Pipeline:
    """One rank's place between its neighbours."""

    def __init__(
        self,
        training: Training,
        plan: Plan,
        link: Link,
        source: SampleSource,
        runner: StageRunner,
        settings: ResolvedTraining,
        device: torch.device,
    ) -> None:
        layout = plan.layout
        self._training, self._plan, self._link = training, plan, link
        self._source, self._runner, self._device = source, runner, device
        self._seed = settings.seed
        self._has_proof = settings.exactness is not Exactness.BITWISE  # that batches can be read again
        self._stage = layout.stage_of(link.rank)
        self._before = link.rank - 1 if self._stage else None
        self._after = link.rank + 1 if self._stage < layout.stages - 1 else None
        self._activations: deque[tuple[Tensor, ...]] = deque()
        self._gradients: deque[tuple[Tensor, ...]] = deque()

    def run(self, micros: Sequence[MicroBatch]) -> Stepping[None]:
        """Run this stage's ops on this replica's micro-batches of one step."""
        ops = program(
            self._plan.schedule,
            stage=self._stage,
            num_stages=self._plan.layout.stages,
            num_micro=len(micros),
            recompute=self._plan.stages[self._stage].recompute,
        )
        forwards = backwards = 0
        for done in range(len(ops)):
            while (op := next_op(ops, done, self._arrivals(len(micros), forwards, backwards))) is None:
                yield Waiting(f"{ops[done]} of stage {self._stage}")
            self._execute(op, micros[op.micro])
            forwards += op.kind is OpKind.FORWARD
            backwards += op.kind is OpKind.BACKWARD
            yield PROGRESSED

    def _arrivals(self, num_micro: int, forwards: int, backwards: int) -> Arrivals:
        """Collect what the neighbours sent; at the ends, data and losses count as arrived."""
        _collect(self._link, self._before, "activations", self._activations)
        _collect(self._link, self._after, "gradients", self._gradients)
        return Arrivals(
            activations=num_micro if self._before is None else forwards + len(self._activations),
            gradients=forwards if self._after is None else backwards + len(self._gradients),
        )

    def _execute(self, op: Op, micro: MicroBatch) -> None:
        match op.kind:
            case OpKind.FORWARD:
                self._forward(micro)
            case OpKind.RECOMPUTE:
                self._runner.recompute(micro)
            case OpKind.BACKWARD:
                self._backward(micro)

    def _forward(self, micro: MicroBatch) -> None:
        is_end = self._before is None or self._after is None
        batch, chosen = self._batch(micro) if is_end else (None, ())
        inputs = chosen if self._before is None else self._activations.popleft()
        outputs = self._runner.forward(micro, inputs, batch if self._after is None else None)
        if self._after is not None:
            self._link.send(self._after, "activations", outputs)

    def _backward(self, micro: MicroBatch) -> None:
        received = None if self._after is None else self._gradients.popleft()
        gradients = None if received is None else [None if g.dtype is torch.bool else g for g in received]
        found = self._runner.backward(micro, gradients)
        if self._before is not None:
            message = tuple(_NO_GRADIENT if g is None else g for g in found)
            self._link.send(self._before, "gradients", message)

    def _batch(self, micro: MicroBatch) -> tuple[Any, tuple[Tensor, ...]]:
        """Return the micro-batch and the model's inputs.

        Both ends choose inputs, under the same key: a script's `inputs` may draw masks and write them into
        the batch for the loss to see.
        """
        read = self._source.fetch if self._has_proof else self._source.proven_micro_batch
        batch = read(micro.step, micro.index, self._plan.batch.micro_batch_size)
        self._has_proof = True
        if self._device.type != "cpu":
            batch = pytree.tree_map_only(Tensor, lambda t: t.to(self._device, non_blocking=True), batch)
        if self._training.inputs is not None:
            seed_generators(
                inputs_key(seed=self._seed, step=micro.step, micro_batch=micro.index), self._device
            )
        return batch, self._training.model_inputs(batch)


def _collect(link: Link, source: int | None, tag: str, into: deque[tuple[Tensor, ...]]) -> None:
    while source is not None and (message := link.poll(source, tag)) is not None:
        into.append(message)
