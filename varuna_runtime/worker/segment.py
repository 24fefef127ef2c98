"""One segment as its own autograd graph: forward and backward of one micro-batch, nothing of schedules."""

import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn.utils.parametrizations import _SpectralNorm

from varuna_runtime.spec import rng
from varuna_runtime.spec.errors import ModelRefused
from varuna_runtime.spec.job import Precision
from varuna_runtime.worker.bits import difference
from varuna_runtime.worker.purity import Look, Watch
from varuna_runtime.worker.randomness import drawn, seed_generators
from varuna_runtime.worker.split import (
    Owed,
    apart,
    backward_input,
    backward_weight,
    copied,
    gradients_of,
    runs_python,
)

R = TypeVar("R")
_ALIGNMENT = 64  # bytes; what torch's allocators give at least

_EXPLAINED = {
    "leaf Variable that requires grad": (
        "It changes its input, which here starts a segment and is kept; write y = x + 1 for x += 1, "
        "or use a module with inplace=True"
    ),
    "device meta": (
        "A lambda, partial or closure made in the constructor still holds the module it was made in, "
        "which has no values; use a method instead"
    ),
    r"^forward\(\) takes": (  # the name of a traced forward; those of modules are qualified
        "A forward with CutPoints keeps the defaults of its arguments: take the default from an argument "
        "that `inputs` is to give"
    ),
    "more than 1 value per channel": (
        "A micro-batch of one row has no variance; choose batch_size and micro_batch_size so that the last "
        "micro-batch of a step has more"
    ),
}

_OF_SPECTRAL_NORM = (
    ". spectral_norm goes on with its power iteration in every forward: use weight_norm, "
    "or exactness: statistical"
)

_COMPUTE = {Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}

Head = Callable[[object], Tensor]  # output of the last segment -> sum of the loss


@dataclass(frozen=True, slots=True)
class Frame:
    """What a backward needs: leaves of the graph and its outputs."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    key: int  # of the forward


@dataclass(frozen=True, slots=True, kw_only=True)
class Gradients:
    """Gradients of one segment and micro-batch; None where there is none."""

    inputs: tuple[Tensor | None, ...]
    parameters: tuple[Tensor | None, ...]


class SegmentRunner:
    """Runs one materialised segment."""

    def __init__(
        self,
        index: int,
        module: nn.Module,
        names: dict[str, str],
        *,
        device: torch.device,
        precision: Precision,
        forbid_mutation: bool,
    ) -> None:
        """Take `names` as local name -> name in the whole model, in canonical order."""
        self.index = index
        self.module = module
        self.names = names
        self.parameters = tuple((names[local], p) for local, p in _in_order(module, names) if p.requires_grad)
        self._trained = tuple(p for _, p in self.parameters)
        self._may_split: bool | None = None  # unknown before the first backward
        self._borrows: bool | None = None  # whether gradients may be in memory of the function that made them
        self._draws_backward: bool | None = None  # unknown before the first backward
        self.device = device
        self._precision = precision
        self._watch = Watch(module) if forbid_mutation else None
        # A module that edits its input in place needs a copy: the input is a leaf, and it is stashed.
        self._copies_inputs = any(getattr(m, "inplace", False) for m in module.modules())

    def begin(self) -> None:
        """Begin a step, or an evaluation: parameters and buffers may have changed since the one before."""
        if self._watch:
            self._watch.begin()

    def forward(self, inputs: Sequence[Tensor], *, key: int, head: Head | None = None) -> Frame:
        """Run the segment under `key`; with a head the only output is the sum of the loss."""
        leaves = tuple(_leaf(t) for t in inputs)
        given = tuple(t.clone() for t in leaves) if self._copies_inputs else leaves
        before = self._watch.look(leaves) if self._watch else None
        seed_generators(key, self.device)
        with torch.enable_grad(), self.autocast():
            raw = self._called(given)
            outputs = (head(raw),) if head else self._outputs(raw)
        if self._watch and before:
            self._refuse_changes(self._watch, before, leaves)
        return Frame(leaves, outputs, key)

    def evaluate(self, inputs: Sequence[Tensor], *, key: int) -> tuple[Tensor, ...]:
        """Run the segment under `key` in eval mode and without gradients."""
        return self.evaluate_head(inputs, key=key, head=self._outputs)

    def evaluate_head(self, inputs: Sequence[Tensor], *, key: int, head: Callable[[Any], R]) -> R:
        """Like `evaluate`; return what `head`, outside autocast, makes of what the module returned."""
        kept = tuple(_as_received(t) for t in inputs)
        given = tuple(t.clone() for t in kept) if self._copies_inputs else kept
        self.begin()
        with torch.no_grad(), in_eval_mode(self.module):
            before = self._watch.look(kept) if self._watch else None
            seed_generators(key, self.device)
            with self.autocast():
                raw = self._called(given)
            result = head(raw)
            if self._watch and before:
                self._refuse_changes(self._watch, before, kept)
        return result

    def backward(self, frame: Frame, gradients: Sequence[Tensor | None]) -> Gradients:
        """Return the gradients of the inputs and the trainable parameters; frees the frame's graph."""
        outputs, seeds = _roots(frame, gradients)
        leaves = [t for t in frame.inputs if t.requires_grad]
        wanted = [*leaves, *self._trained]
        found: Sequence[Tensor | None] = [None] * len(wanted)
        if outputs and wanted:
            borrows = self._borrows_from(outputs)
            with self._keyed(frame):
                found = gradients_of(outputs, wanted, seeds)
            found = copied(found) if borrows else found
        return Gradients(
            inputs=_in_place(frame, apart(found[: len(leaves)], found[len(leaves) :])),
            parameters=tuple(map(_dense, found[len(leaves) :])),
        )

    def backward_input(
        self, frame: Frame, gradients: Sequence[Tensor | None]
    ) -> tuple[tuple[Tensor | None, ...], Owed]:
        """Return the gradients of the inputs, and what `backward_weight` needs; see `split`.

        The first one after a start does the whole and both passes; the segment is split from then on only if
        the bits are equal. A hook on a tensor runs in both passes, say, and may tell its calls apart.
        A backward that cannot run twice keeps the segment whole.
        """
        outputs, seeds = _roots(frame, gradients)
        leaves = [t for t in frame.inputs if t.requires_grad]
        wanted = [*leaves, *self._trained]
        if not outputs or not wanted:
            return (None,) * len(frame.inputs), Owed(self._trained, [None] * len(self._trained), [])
        borrows = self._borrows_from(outputs)
        if self._may_split:
            found, owed = backward_input(outputs, seeds, leaves, self._trained)
            if borrows:
                found, owed = copied(found), owed.copied()
            return _in_place(frame, apart(found, owed.held)), owed
        whole = None
        if self._may_split is None:
            with self._keyed(frame):
                whole = self._tried(outputs, seeds, leaves)
        if whole is None:
            with self._keyed(frame):
                whole = gradients_of(outputs, wanted, seeds)
            whole = copied(whole) if borrows else whole
        inputs = apart(whole[: len(leaves)], whole[len(leaves) :])
        return _in_place(frame, inputs), Owed(self._trained, whole[len(leaves) :], [])

    def _tried(
        self, outputs: Sequence[Tensor], seeds: Sequence[Tensor], leaves: Sequence[Tensor]
    ) -> Sequence[Tensor | None] | None:
        """Find out whether two passes do as one does; return what one found, None if its graph must go."""
        self._may_split = False
        wanted = [*leaves, *self._trained]
        try:
            whole = gradients_of(outputs, wanted, seeds, keep_graph=True)
        except RuntimeError:  # compiled code may refuse to keep what it saved
            return None
        # The memory may be a function's own, which writes into it again when it is called again.
        kept = copied(whole)
        try:
            found, owed = backward_input(outputs, seeds, leaves, self._trained)
            self._may_split = difference([*found, *backward_weight(owed)], kept) is None
        except Exception:  # whatever the function raises that was not made for a second call
            self._may_split = False
        return kept

    def backward_weight(self, owed: Owed) -> tuple[Tensor | None, ...]:
        """Return the gradients of the trainable parameters; frees what is left of the graph."""
        found = backward_weight(owed)
        return tuple(map(_dense, copied(found) if self._borrows else found))

    @contextmanager
    def _keyed(self, frame: Frame) -> Iterator[None]:
        """Seed what a backward draws from, as hooks that add noise do; the first one tells whether any."""
        if self._draws_backward is False:
            yield
            return
        seed_generators(rng.key("backward", frame.key), self.device)
        before = drawn(self.device)
        yield
        if self._draws_backward is None:
            self._draws_backward = drawn(self.device) != before

    def _borrows_from(self, outputs: Sequence[Tensor]) -> bool:
        """Return whether gradients must be copied before the next micro-batch's; found out the first time.

        A function written in Python may return memory of its own and write into it when it is called again.
        """
        if self._borrows is None:
            self._borrows = runs_python(outputs)
        return self._borrows

    def _called(self, given: tuple[Tensor, ...]) -> object:
        try:
            return self.module(*given)
        except (RuntimeError, TypeError, ValueError) as err:  # some complaints need our half of the story
            reason = next((reason for sign, reason in _EXPLAINED.items() if re.search(sign, str(err))), None)
            if reason is None:
                raise
            raise ModelRefused(f"forward of segment {self.index}: {err} {reason}") from err

    def autocast(self) -> AbstractContextManager[object]:
        """Return the precision that forward and loss run under."""
        if self._precision is Precision.FP32:
            return nullcontext()
        # The cast cache would tie the graphs of two micro-batches together.
        return torch.autocast(self.device.type, dtype=_COMPUTE[self._precision], cache_enabled=False)

    def _outputs(self, raw: object) -> tuple[Tensor, ...]:
        outputs = (raw,) if isinstance(raw, Tensor) else raw
        if isinstance(outputs, list | tuple) and all(isinstance(t, Tensor) for t in outputs):
            return tuple(outputs)
        raise ModelRefused(
            f"segment {self.index} ({type(self.module).__name__}) returned {type(raw).__name__}; "
            "wanted a tensor or a tuple of tensors, because its result goes to the next segment"
        )

    def _refuse_changes(self, watch: Watch, before: Look, inputs: Sequence[Tensor]) -> None:
        if not (changed := watch.changes(before, inputs)):
            return
        names = ", ".join(self.names.get(name, name) for name in changed)
        has_spectral_norm = any(isinstance(m, _SpectralNorm) for m in self.module.modules())
        hint = _OF_SPECTRAL_NORM if has_spectral_norm else ""
        raise ModelRefused(
            f"forward of segment {self.index} ({type(self.module).__name__}) changes {names}; "
            "under exactness: bitwise only running statistics of normalisation layers may change in "
            f"forward{hint}"
        )


@contextmanager
def in_eval_mode(module: nn.Module) -> Iterator[None]:
    """Put a module and what is in it into eval mode, and back as each was."""
    modes = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, was_training in modes:
            part.training = was_training


def _roots(frame: Frame, gradients: Sequence[Tensor | None]) -> tuple[list[Tensor], list[Tensor]]:
    """Return the outputs that got a gradient, and what they got."""
    outputs, seeds = [], []
    for output, gradient in zip(frame.outputs, gradients, strict=True):
        if gradient is not None and output.requires_grad:
            outputs.append(output)
            seeds.append(_as_received(gradient))
    return outputs, seeds


def _in_place(frame: Frame, found: Sequence[Tensor | None]) -> tuple[Tensor | None, ...]:
    """Return the gradients of all inputs, given those of the inputs that require one."""
    of_leaves = iter(found)
    return tuple(next(of_leaves) if t.requires_grad else None for t in frame.inputs)


def _dense(gradient: Tensor | None) -> Tensor | None:
    """Return the gradient of an embedding with sparse=True like any other: sums are of whole tensors."""
    return gradient.to_dense() if gradient is not None and gradient.is_sparse else gradient


def _leaf(tensor: Tensor) -> Tensor:
    if not isinstance(tensor, Tensor):
        raise ModelRefused(f"a model input is a {type(tensor).__name__}; wanted tensors only")
    return _as_received(tensor.detach()).requires_grad_(tensor.requires_grad)


def _as_received(tensor: Tensor) -> Tensor:
    """Return `tensor` laid out as if it came over a link, wherever the cuts are.

    Kernels may choose their order of sums by strides and alignment, and whether a conjugate is still to be
    taken.
    """
    tensor = tensor.resolve_conj().resolve_neg()
    if tensor.is_contiguous() and tensor.data_ptr() % _ALIGNMENT == 0:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _in_order(module: nn.Module, names: dict[str, str]) -> list[tuple[str, nn.Parameter]]:
    found = dict(module.named_parameters())
    return [(name, found[name]) for name in names if name in found]
