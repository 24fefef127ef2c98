"""Executes a stage's program over the link: count arrivals, choose, op, send; it never ends a step."""

from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from varuna_runtime.spec.job import Exactness
from varuna_runtime.spec.layout import Plan
from varuna_runtime.spec.programs import stage_program
from varuna_runtime.spec.schedule import Op, OpKind, State, awaited, next_op
from varuna_runtime.worker.data import SampleSource
from varuna_runtime.worker.feed import Fed, Feed
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.signals import PROGRESSED, Stepping, Waiting
from varuna_runtime.worker.stage import MicroBatch, StageRunner
from varuna_runtime.worker.stopwatch import Busy, Stopwatch
from varuna_runtime.worker.training import ResolvedTraining, Training

_Backward = Callable[[MicroBatch, Sequence[Tensor | None] | None], tuple[Tensor | None, ...]]
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
        self._plan, self._link, self._runner = plan, link, runner
        self._feed = Feed(
            training,
            source,
            size=plan.batch.micro_batch_size,
            seed=settings.seed,
            device=device,
            needs_proof=settings.exactness is Exactness.BITWISE,
        )
        self._stage = layout.stage_of(link.rank)
        self._before = link.rank - 1 if self._stage else None
        self._after = link.rank + 1 if self._stage < layout.stages - 1 else None
        self._activations: deque[tuple[Tensor, ...]] = deque()
        self._gradients: deque[tuple[Tensor, ...]] = deque()
        self._is_end = self._before is None or self._after is None
        self._ahead: Fed | None = None
        self.realised: list[Op] = []  # what the last step ran, in order
        self._watch = Stopwatch(device)
        self._num_samples = 0

    @property
    def busy(self) -> Busy:
        """What the ops of the last step took."""
        return Busy(seconds=self._watch.taken_s(), num_samples=self._num_samples)

    def run(self, micros: Sequence[MicroBatch]) -> Stepping[None]:
        """Run this stage's ops on this replica's micro-batches of one step."""
        todo = stage_program(self._plan, self._stage, len(micros))
        state = State.start(todo)
        self.realised = []
        self._watch.reset()
        self._num_samples = sum(micro.rows for micro in micros)
        self._ahead = None
        self._activations.clear()  # of an abandoned step
        self._gradients.clear()
        for _ in range(todo.num_ops):
            self._collect(state)
            while (op := next_op(todo, state)) is None:
                if self._reads_ahead(micros, state.forwards):
                    yield PROGRESSED
                else:
                    yield Waiting(awaited(todo, state))
                self._collect(state)
            self._execute(op, micros[op.micro])
            state.finish(todo, op)
            self.realised.append(op)
            yield PROGRESSED

    def _collect(self, state: State) -> None:
        """Take and count what the neighbours sent."""
        if self._before is not None:
            while (message := self._link.poll(self._before, "activations")) is not None:
                self._activations.append(message)
                state.activations += 1
        if self._after is not None:
            while (message := self._link.poll(self._after, "gradients")) is not None:
                self._gradients.append(message)
                state.gradients += 1

    def _execute(self, op: Op, micro: MicroBatch) -> None:
        match op.kind:
            case OpKind.FORWARD:
                self._forward(micro)
            case OpKind.RECOMPUTE:
                with self._watch:
                    self._runner.recompute(micro)
            case OpKind.BACKWARD:
                self._backward(micro, self._runner.backward)
            case OpKind.INPUT:
                self._backward(micro, self._runner.backward_input)
            case OpKind.WEIGHT:
                with self._watch:
                    self._runner.backward_weight(micro)

    def _forward(self, micro: MicroBatch) -> None:
        batch, chosen = self._data(micro)
        inputs = chosen if self._before is None else self._activations.popleft()
        with self._watch:
            outputs = self._runner.forward(micro, inputs, batch if self._after is None else None)
        if self._after is not None:
            self._link.send(self._after, "activations", outputs)

    def _backward(self, micro: MicroBatch, backward: _Backward) -> None:
        received = None if self._after is None else self._gradients.popleft()
        gradients = None if received is None else [None if g.dtype is torch.bool else g for g in received]
        with self._watch:
            found = backward(micro, gradients)
        if self._before is not None:
            message = tuple(_NO_GRADIENT if g is None else g for g in found)
            self._link.send(self._before, "gradients", message)

    def _reads_ahead(self, micros: Sequence[MicroBatch], forwards: int) -> bool:
        """Read the next forward's data while no op is ready; False if there is nothing to read."""
        if not self._is_end or self._ahead is not None or forwards == len(micros):
            return False
        self._ahead = self._feed.read(micros[forwards].step, micros[forwards].index)
        return True

    def _data(self, micro: MicroBatch) -> tuple[Any, tuple[Tensor, ...]]:
        if not self._is_end:
            return None, ()
        ahead, self._ahead = self._ahead, None
        return ahead or self._feed.read(micro.step, micro.index)
