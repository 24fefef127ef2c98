"""The segments one rank runs: ops on micro-batches, their stash, and the sums of their gradients."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from varuna_runtime.spec.errors import ModelRefused
from varuna_runtime.spec.rng import forward_key
from varuna_runtime.worker.accumulate import Accumulator
from varuna_runtime.worker.buffers import StatisticsFold
from varuna_runtime.worker.segment import Frame, SegmentRunner
from varuna_runtime.worker.split import Owed

Loss = Callable[[Any, Any], Tensor | tuple[Tensor, Tensor]]


@dataclass(frozen=True, slots=True, kw_only=True)
class MicroBatch:
    """One micro-batch of the current step."""

    step: int
    index: int  # in the global batch
    rows: int
    virtual_replica: int
    ends_virtual_replica: bool


@dataclass(slots=True)
class _Held:
    """What a micro-batch keeps between its forward and its backward."""

    inputs: tuple[Tensor, ...]
    batch: Any
    frames: list[Frame]


class StageRunner:
    """Forward, recompute and backward of one stage; `loss` is given on the last one only."""

    def __init__(
        self,
        segments: Sequence[SegmentRunner],
        accumulators: Sequence[Sequence[Accumulator]],
        statistics: StatisticsFold,
        *,
        seed: int,
        recompute: bool,
        loss: Loss | None,
    ) -> None:
        self._segments = segments
        self._accumulators = accumulators
        self._statistics = statistics
        self._seed = seed
        self._recompute = recompute
        self._loss = loss
        self._held: dict[int, _Held] = {}  # by index of micro-batch
        self._owed: dict[int, list[Owed]] = {}  # last segment first
        self._losses: list[tuple[Tensor, Tensor]] = []
        self.loss_scale = 1.0  # of the gradients, not of the recorded losses
        self._on_done: Callable[[int], None] | None = None
        self._last_virtual: int | None = None

    def begin(self, virtual: int, owned: range, *, on_done: Callable[[int], None] | None = None) -> None:
        """Forget an abandoned step and start one with these virtual replicas.

        `on_done` gets the position of a segment in the stage as soon as its sums of the step are complete;
        never called where `owned` is empty.
        """
        self._on_done = on_done
        self._last_virtual = owned[-1] if owned else None
        self._held.clear()
        self._owed.clear()
        self._losses.clear()
        self._statistics.begin()
        for segment in self._segments:
            segment.begin()
        for accumulator in (a for of_segment in self._accumulators for a in of_segment):
            accumulator.start(virtual, owned)

    def forward(self, micro: MicroBatch, inputs: tuple[Tensor, ...], batch: Any) -> tuple[Tensor, ...]:
        """Run F and return what the next stage needs, flagged where a gradient comes back."""
        held = _Held(inputs, batch, [])
        self._statistics.record(True)
        outputs = self._run(micro, held, keep=not self._recompute, counts=True)
        self._statistics.record(False)
        self._held[micro.index] = held
        return tuple(t.detach().requires_grad_(t.requires_grad) for t in outputs)

    def recompute(self, micro: MicroBatch) -> None:
        """Run R: replay F from the stage's inputs and keep the graphs."""
        self._run(micro, self._held[micro.index], keep=True, counts=False)

    def backward(
        self, micro: MicroBatch, gradients: Sequence[Tensor | None] | None
    ) -> tuple[Tensor | None, ...]:
        """Run B, add up the parameters' gradients and return those of the stage's inputs.

        Takes the gradients of the stage's outputs; None on the last stage, which starts from its loss.
        """
        frames = self._held.pop(micro.index).frames
        if gradients is None:
            gradients = self._seeds(frames[-1])
        for position in reversed(range(len(self._segments))):
            found = self._segments[position].backward(frames.pop(), gradients)
            self._add(position, micro, found.parameters)
            gradients = found.inputs
        return tuple(gradients)

    def backward_input(
        self, micro: MicroBatch, gradients: Sequence[Tensor | None] | None
    ) -> tuple[Tensor | None, ...]:
        """Run I: like `backward`, but leave the parameters' gradients to W."""
        frames = self._held.pop(micro.index).frames
        if gradients is None:
            gradients = self._seeds(frames[-1])
        owed: list[Owed] = []
        for segment in reversed(self._segments):
            gradients, rest = segment.backward_input(frames.pop(), gradients)
            owed.append(rest)
        self._owed[micro.index] = owed
        return tuple(gradients)

    def backward_weight(self, micro: MicroBatch) -> None:
        """Run W: find the parameters' gradients that I left, and add them up."""
        owed = self._owed.pop(micro.index)
        for position in reversed(range(len(self._segments))):
            self._add(position, micro, self._segments[position].backward_weight(owed.pop(0)))

    def losses(self) -> Tensor:
        """Return `(micro-batches, 2)` float64: loss sums and weights in order; for the last stage."""
        if not self._losses:
            return torch.empty((0, 2), dtype=torch.float64)
        columns = [torch.stack(column).double() for column in zip(*self._losses, strict=True)]
        return torch.stack(columns, dim=1).cpu()

    def _seeds(self, frame: Frame) -> tuple[Tensor, ...]:
        return tuple(torch.ones_like(loss_sum) * self.loss_scale for loss_sum in frame.outputs)

    def _add(self, position: int, micro: MicroBatch, gradients: Sequence[Tensor | None]) -> None:
        for accumulator in self._accumulators[position]:
            accumulator.add(gradients, is_last=micro.ends_virtual_replica)
            if micro.ends_virtual_replica:
                accumulator.finish_leaf(micro.virtual_replica)
        is_last = micro.ends_virtual_replica and micro.virtual_replica == self._last_virtual
        if is_last and self._on_done is not None:
            self._on_done(position)

    def _run(self, micro: MicroBatch, held: _Held, *, keep: bool, counts: bool) -> tuple[Tensor, ...]:
        values = held.inputs
        for segment in self._segments:
            key = forward_key(
                seed=self._seed, step=micro.step, micro_batch=micro.index, segment=segment.index
            )
            is_last = self._loss is not None and segment is self._segments[-1]
            head = (lambda output: self._summed(output, held.batch, micro, counts)) if is_last else None
            frame = segment.forward(values, key=key, head=head)
            if keep:
                held.frames.append(frame)
            values = frame.outputs
        return values

    def _summed(self, output: object, batch: Any, micro: MicroBatch, counts: bool) -> Tensor:
        assert self._loss is not None
        loss_sum, weight = weighted_sum(self._loss(output, batch), micro.rows)
        if not loss_sum.requires_grad and float(weight) > 0:
            raise ModelRefused(
                "the loss does not depend on any trainable parameter: nothing would be trained; "
                "compute it from the model's output, without detach() and outside torch.no_grad()"
            )
        if counts:
            self._losses.append((loss_sum.detach(), weight))
        return loss_sum


def weighted_sum(loss: object, rows: int) -> tuple[Tensor, Tensor]:
    """Return (sum, weight) of what a loss function returned; a mean scalar weighs its rows."""
    value = loss[0] if isinstance(loss, tuple | list) and loss else loss
    if isinstance(value, Tensor) and value.is_complex():
        raise ModelRefused("the loss is a complex number; wanted a real one, such as loss.abs() or loss.real")
    if isinstance(loss, Tensor) and loss.numel() == 1:
        weight = torch.tensor(float(rows), device=loss.device)
        return loss.reshape(()) * weight, weight  # by a tensor: a mean in half precision gives a sum in full
    if isinstance(loss, tuple | list) and len(loss) == 2 and isinstance(loss[0], Tensor):
        loss_sum, weight = loss
        is_number = isinstance(weight, Tensor | int | float)
        if is_number and loss_sum.numel() == 1 and torch.as_tensor(weight).numel() == 1:
            weight = torch.as_tensor(weight, device=loss_sum.device).detach()
            return loss_sum.reshape(()), weight.reshape(())
    raise ModelRefused(
        f"the loss returned {type(loss).__name__}; wanted a scalar tensor (a mean over the rows) "
        "or a pair (sum, weight) of scalar tensors"
    )
