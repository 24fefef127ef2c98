"""Measures one segment on one micro-batch, through what the engine runs it with; knows of no other."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from varuna_runtime.spec.profile import SegmentCost
from varuna_runtime.worker.accumulate import BLOCK, Space
from varuna_runtime.worker.build import BuiltStage
from varuna_runtime.worker.memory_probe import SavedBytes, num_bytes, taken
from varuna_runtime.worker.reduce import Sum
from varuna_runtime.worker.samples import is_settled, typical
from varuna_runtime.worker.segment import Frame
from varuna_runtime.worker.split import Owed
from varuna_runtime.worker.stage import Loss, MicroBatch, StageRunner, weighted_sum

Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class Entering:
    """What enters a segment, flagged where a gradient goes back."""

    values: tuple[Tensor, ...]
    batch: Any
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Bytes of one micro-batch; see `SegmentCost`."""

    saved_bytes: int
    workspace_bytes: int
    split_workspace_bytes: int
    owed_bytes: int


@dataclass(frozen=True, slots=True)
class Times:
    """Every timing of each kind of op."""

    forward: list[float] = field(default_factory=list)
    backward: list[float] = field(default_factory=list)
    recompute: list[float] = field(default_factory=list)
    input: list[float] = field(default_factory=list)
    weight: list[float] = field(default_factory=list)

    @property
    def kinds(self) -> tuple[list[float], ...]:
        """All of them."""
        return self.forward, self.backward, self.recompute, self.input, self.weight


@dataclass(frozen=True, slots=True, kw_only=True)
class OptimizerCost:
    """What a step of the job's optimizer costs on one segment."""

    step_s: float
    state_bytes: int
    step_bytes: int
    scratch_bytes: int


class SegmentProbe:
    """Runs the ops of one built segment; `loss` is given for the last one only."""

    def __init__(
        self,
        built: BuiltStage,
        entering: Entering,
        *,
        seed: int,
        loss: Loss | None,
        device: torch.device,
        clock: Clock,
    ) -> None:
        self._built, self._entering, self._loss = built, entering, loss
        self._device, self._clock = device, clock
        self._segment = built.segments[0]
        self._replayer = StageRunner(
            built.segments, [built.accumulators], built.statistics, seed=seed, recompute=True, loss=loss
        )
        self.outputs: tuple[Tensor, ...] = ()  # of the newest forward

    def sizes(self) -> Sizes:
        """Count bytes; with this the segment is warm."""
        saved = SavedBytes(self._segment.module, self._entering.values)
        with torch.autograd.graph.saved_tensors_hooks(saved.pack, _unchanged):
            self._forward(self._built.runner)
        saved_bytes = saved.num_bytes(self.outputs)
        self._backward(self._built.runner, self._seeds())
        del saved
        runner, seeds = self._built.runner, self._seeds()
        self.outputs = ()
        runner.begin(1, range(1))
        forward, backward = taken(
            self._device, lambda: self._forward(runner), lambda: self._backward(runner, seeds)
        )
        workspace = max(forward.peak_bytes - saved_bytes, backward.peak_bytes)
        tried = self._split_once()
        split = self._split_once()
        return Sizes(
            saved_bytes=saved_bytes,
            workspace_bytes=workspace,
            split_workspace_bytes=max(workspace, tried.peak_bytes, split.peak_bytes),
            owed_bytes=split.left_bytes,
        )

    def times(self, patience_s: float) -> Times:
        """Time each kind of op until it is settled, or for `patience_s`."""
        found = Times()
        started = self._clock()
        while True:
            self._time_once(found)
            if is_settled(found.kinds, is_late=self._clock() - started > patience_s):
                return found

    def optimizer(self, patience_s: float) -> OptimizerCost:
        """Step the job's optimizer on gradients of zero, after what makes them of their sums."""
        for _, parameter in self._segment.parameters:
            parameter.grad = torch.zeros_like(parameter)
        self._step()  # makes the state
        (step,) = taken(self._device, self._step)
        times: list[float] = []
        sums = [_no_sum(accumulator.space, self._device) for accumulator in self._built.accumulators]
        started = self._clock()
        while not times or not is_settled([times], is_late=self._clock() - started > patience_s):
            times.append(self._timed(lambda: self._end_step(sums)))
        state = self._built.optimizer.tensors([name for name, _ in self._segment.parameters])
        largest = max((parameter.numel() for _, parameter in self._segment.parameters), default=0)
        return OptimizerCost(
            step_s=typical(times),
            state_bytes=num_bytes(state.values()),
            step_bytes=step.peak_bytes,
            scratch_bytes=torch.float64.itemsize * min(largest, BLOCK),
        )

    def _time_once(self, found: Times) -> None:
        runner, replayer, seeds = self._built.runner, self._replayer, self._seeds()
        found.forward.append(self._timed(lambda: self._forward(runner)))
        found.backward.append(self._timed(lambda: self._backward(runner, seeds)))
        self._forward(replayer)
        found.recompute.append(self._timed(lambda: replayer.recompute(self._micro)))
        found.backward.append(self._timed(lambda: self._backward(replayer, seeds)))
        self._forward(runner)
        found.input.append(self._timed(lambda: runner.backward_input(self._micro, self._ends(seeds))))
        found.weight.append(self._timed(lambda: runner.backward_weight(self._micro)))

    def _timed(self, op: Callable[[], object]) -> float:
        started = self._now_s()
        op()
        return self._now_s() - started

    def _now_s(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._clock()

    def _forward(self, runner: StageRunner) -> None:
        runner.begin(1, range(1))
        self.outputs = runner.forward(self._micro, self._entering.values, self._entering.batch)

    def _backward(self, runner: StageRunner, seeds: Sequence[Tensor | None]) -> None:
        runner.backward(self._micro, self._ends(seeds))

    def _ends(self, seeds: Sequence[Tensor | None]) -> Sequence[Tensor | None] | None:
        """Return what a backward starts from: on the last segment its loss does."""
        return None if self._loss else seeds

    def _end_step(self, sums: Sequence[Sum]) -> None:
        gradients, ties = self._built.gradients, self._built.ties
        for at, total in enumerate(sums):
            gradients.assign(at, total, 1.0)
        used = gradients.use_sums(sums)
        gradients.join({tie: used[use] for tie in ties for use in tie.uses if use in used}, 1.0)
        gradients.partials()
        self._step()

    def _step(self) -> None:
        self._built.optimizer.step(0.0)

    def _seeds(self) -> list[Tensor | None]:
        return _ones(self.outputs)

    @property
    def _micro(self) -> MicroBatch:
        rows = self._entering.rows
        return MicroBatch(step=0, index=0, rows=rows, virtual_replica=0, ends_virtual_replica=False)

    def _split_once(self) -> "_Split":
        frames: list[Frame] = []
        owed: list[Owed] = []

        def forward() -> None:
            frames.append(self._frame())

        def first_pass() -> None:
            # As in the engine, what W does not need goes with I; what came in may be needed.
            seeds = _ones(frames[0].outputs)
            owed.append(self._segment.backward_input(frames.pop(), seeds)[1])

        def second_pass() -> None:
            self._segment.backward_weight(owed[0])

        kept, inputs, weights = taken(self._device, forward, first_pass, second_pass)
        return _Split(
            peak_bytes=max(inputs.peak_bytes, inputs.left_bytes + weights.peak_bytes),
            left_bytes=kept.left_bytes + inputs.left_bytes,
        )

    def _frame(self) -> Frame:
        head = self._loss_sum if self._loss else None
        return self._segment.forward(self._entering.values, key=0, head=head)

    def _loss_sum(self, output: object) -> Tensor:
        assert self._loss is not None
        return weighted_sum(self._loss(output, self._entering.batch), self._entering.rows)[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Split:
    peak_bytes: int
    left_bytes: int  # by forward and first pass


def segment_cost(
    sizes: Sizes, times: Times, optimizer: OptimizerCost, *, output_bytes: int, param_bytes: int
) -> SegmentCost:
    """Return the record of one segment: medians, and bytes as counted."""
    return SegmentCost(
        forward_s=typical(times.forward),
        backward_s=typical(times.backward),
        output_bytes=output_bytes,
        saved_bytes=sizes.saved_bytes,
        param_bytes=param_bytes,
        optimizer_bytes=optimizer.state_bytes,
        recompute_s=typical(times.recompute),
        input_s=typical(times.input),
        weight_s=typical(times.weight),
        workspace_bytes=sizes.workspace_bytes,
        split_workspace_bytes=sizes.split_workspace_bytes,
        owed_bytes=sizes.owed_bytes,
        scratch_bytes=optimizer.scratch_bytes,
        step_bytes=optimizer.step_bytes,
    )


def _no_sum(space: Space, device: torch.device) -> Sum:
    return Sum(
        flat=torch.zeros(space.offsets[-1], dtype=space.dtype, device=device),
        touched=torch.ones(len(space.names), dtype=torch.bool),
    )


def _ones(outputs: Sequence[Tensor]) -> list[Tensor | None]:
    return [torch.ones_like(t) if t.requires_grad else None for t in outputs]


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor
