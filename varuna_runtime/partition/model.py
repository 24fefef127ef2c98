"""The cut model: segments on the meta device, their names, and their initial values on demand."""

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from varuna_runtime.partition import naming
from varuna_runtime.partition.checks import OnlyTraining
from varuna_runtime.partition.construction import Construction
from varuna_runtime.partition.example import Arguments, Example
from varuna_runtime.partition.pretrained import Pretrained
from varuna_runtime.partition.replay import replaying
from varuna_runtime.partition.seeding import preserved_random_state
from varuna_runtime.partition.segments import Segments, segments_of, whole
from varuna_runtime.partition.values import InitialValues, blank
from varuna_runtime.spec.errors import ModelRefused
from varuna_runtime.spec.model import SegmentRecord, TiedParameter

ModelFactory = Callable[[], nn.Module | Sequence[nn.Module]]


def cut(
    build_model: ModelFactory,
    example: Callable[[], Example] | None = None,
    *,
    pretrained: str | Path | None = None,
) -> "PartitionedModel":
    """Call `build_model` once on the meta device and return its segments.

    `example` tells what inputs look like; it is called once at most. With it a module that has neither
    marks nor is a sequence is traced and cut between its blocks, else it is one segment. `pretrained` is a
    file, folder or index of safetensors with initial values. Leaves every global random state as it was.
    Raises ModelRefused, naming the module, when the model cannot be cut at its marks or its construction
    cannot be replayed tensor by tensor.
    """
    construction = Construction()
    model = whole(construction.run(build_model))
    with preserved_random_state():
        stored = None if pretrained is None else Pretrained(pretrained, model)
        found = segments_of(model, example)
    return PartitionedModel(construction, model, found, stored)


class PartitionedModel:
    """Segments 0..n-1 of one model; holds meta tensors only, so it is as small as the model's structure.

    A segment is an nn.Module from positional tensors to a tensor or a tuple of tensors, which the next
    segment receives positionally. Names are those of the user's whole model.
    """

    record_segments: tuple[SegmentRecord, ...]
    tied: tuple[TiedParameter, ...]
    aliases: tuple[tuple[str, ...], ...]  # see `ModelRecord`
    arguments: Arguments  # of the first segment
    warnings: tuple[str, ...]  # what the user should know of how the model was cut

    def __init__(
        self, construction: Construction, model: nn.Module, found: Segments, pretrained: Pretrained | None
    ) -> None:
        segments, self.arguments = found.segments, found.arguments
        self._is_traced = found.is_traced
        self.warnings = tuple(filter(None, (found.warning, pretrained.warning if pretrained else "")))
        naming.refuse_shared_statistics(segments)
        naming.refuse_hidden_parameters(segments)
        naming.refuse_gradient_hooks(segments)
        self._values = InitialValues(
            construction, naming.all_tensors(segments), pretrained.stored if pretrained else {}
        )
        self._modules = tuple(segment.module for segment in segments)
        self._names = naming.state_names(model, segments)
        self.tied = naming.tied_parameters(segments)
        self.record_segments = naming.records(segments, self._names, self.tied)
        self.aliases = naming.aliases(model, self.record_segments)

    @property
    def num_segments(self) -> int:
        """Number of segments."""
        return len(self.record_segments)

    def refuse_evaluation(self) -> None:
        """Raise ModelRefused if what was traced in training may be something else in evaluation."""
        for segment in self._modules:
            for module in segment.modules():
                if isinstance(module, OnlyTraining):
                    module.refuse()

    def meta_segment(self, index: int) -> nn.Module:
        """Return the shared meta module of a segment; never change it."""
        return self._modules[index]

    def state_names(self, index: int) -> Mapping[str, str]:
        """Map local names to whole-model names, in canonical order: parameters, then persistent buffers.

        A tensor with several names inside the segment appears once. A tied parameter appears in every
        segment that uses it, under its name there: the name of its `TiedUse`. A buffer that several
        segments use appears in the first one only; the others hold constant copies.
        """
        return MappingProxyType({name: name for name in self._names[index]})

    def materialise(
        self, index: int, *, seed: int, device: torch.device, shared: dict[int, Tensor] | None = None
    ) -> nn.Module:
        """Return a fresh copy of one segment with its initial values on `device`.

        The values are a function of (seed, name) and of the construction: equal bits whichever segments
        are asked for, in any order, on any rank; a tied parameter is bit-equal in every copy. Made on the
        CPU one tensor at a time; the process's random state is left as it was. Segments that are given the
        same `shared`, empty at first, use one object for a tied parameter, wherever they refer to it.
        """
        return self._made(index, lambda t: self._values.of(t, seed=seed, device=device), device, shared)

    def materialise_blank(
        self, index: int, *, seed: int, device: torch.device, shared: dict[int, Tensor] | None = None
    ) -> nn.Module:
        """Like `materialise`, but what `state_names` names is not a number until somebody fills it."""
        held = naming.held_tensors(self._modules[index])
        named = {id(held[name]) for name in self._names[index]}

        def make(tensor: Tensor) -> Tensor:
            if id(tensor) in named:
                return blank(tensor, device=device)
            return self._values.of(tensor, seed=seed, device=device)

        return self._made(index, make, device, shared)

    def _made(
        self,
        index: int,
        make: Callable[[Tensor], Tensor],
        device: torch.device,
        shared: dict[int, Tensor] | None,
    ) -> nn.Module:
        module = self._modules[index]
        known = {} if shared is None else shared
        with replaying():
            memo: dict[int, Any] = {}
            for tensor in naming.held_tensors(module).values():
                real = known.get(id(tensor))
                memo[id(tensor)] = make(tensor) if real is None else real
            known.update((id(p), memo[id(p)]) for p in module.parameters())
            with _NoHiddenTensors():
                made = copy.deepcopy(module, memo)
        if device.type != "cpu" and self._is_traced:
            from varuna_runtime.partition.graphs import move_to

            move_to(made, device)
        return made

    def initial_state(self, *, seed: int) -> dict[str, Tensor]:
        """Return every parameter and persistent buffer of the model on the CPU, a tied one once."""
        state: dict[str, Tensor] = {}
        for record in self.record_segments:
            state |= self.initial_values(record.index, seed=seed)
        return state

    def initial_values(self, index: int, *, seed: int) -> dict[str, Tensor]:
        """Return what `initial_state` has of one segment: the tensors of its record."""
        held = naming.held_tensors(self.materialise(index, seed=seed, device=torch.device("cpu")))
        return {tensor.name: held[tensor.name].detach() for tensor in self.record_segments[index].tensors}


class _NoHiddenTensors(TorchFunctionMode):
    """Refuses to copy a meta tensor that no module attribute leads to: it would stay without values."""

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        is_copy = func in (torch.Tensor.__deepcopy__, torch.Tensor.clone)
        if is_copy and args[0].device.type == "meta":
            raise ModelRefused(
                f"the model keeps a tensor of shape {tuple(args[0].shape)} inside an object of its own; "
                "keep it in a module: as parameter, buffer, attribute, or in a list or dict there"
            )
        return func(*args, **(kwargs or {}))
