"""Runs a model and its segments side by side: outputs and gradients of every parameter."""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from varuna_runtime.partition import PartitionedModel

CPU = torch.device("cpu")


def twin(model: PartitionedModel, built: nn.Module) -> list[nn.Module]:
    """Return the segments' modules with one object per tied parameter, and give `built` their values."""
    shared: dict[int, Tensor] = {}
    segments = [model.materialise(i, seed=3, device=CPU, shared=shared) for i in range(model.num_segments)]
    values = {name: t for s in segments for name, t in (*s.named_parameters(), *s.named_buffers())}
    with torch.no_grad():
        for name, tensor in (*built.named_parameters(), *built.named_buffers()):
            tensor.copy_(values[name])
    return segments


def of_whole(model: nn.Module, inputs: Any, seed: int) -> tuple[list[Tensor], dict[str, Tensor | None]]:
    """Return the tensors of the output and the gradients of the first one's sum."""
    torch.manual_seed(seed)
    output = model(**inputs) if isinstance(inputs, Mapping) else model(*inputs)
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    found = torch.autograd.grad(_first(output).sum(), [p for _, p in named], allow_unused=True)
    return _tensors(output), {n: g for (n, _), g in zip(named, found, strict=True)}


def of_segments(
    segments: Sequence[nn.Module], inputs: Sequence[Tensor], seed: int
) -> tuple[list[Tensor], dict[str, Tensor | None]]:
    """The same of segments one after the other, each with a graph of its own."""
    torch.manual_seed(seed)
    values = tuple(inputs)
    frames: list[tuple[tuple[Tensor, ...], tuple[Tensor, ...]]] = []
    output: Any = None
    for segment in segments:
        leaves = tuple(v.detach().clone().requires_grad_(v.requires_grad) for v in values)
        output = segment(*leaves)
        is_last = segment is segments[-1]
        values = (_first(output).sum(),) if is_last else output if isinstance(output, tuple) else (output,)
        frames.append((leaves, values))
    return _tensors(output), _backward(segments, frames)


def _backward(segments: Sequence[nn.Module], frames: Sequence[Any]) -> dict[str, Tensor | None]:
    per_use: dict[int, list[Tensor]] = {}
    names: dict[int, str] = {}
    received: tuple[Tensor | None, ...] = (torch.ones(()),)
    for segment, (leaves, outputs) in zip(reversed(segments), reversed(frames), strict=True):
        roots = [(o, g) for o, g in zip(outputs, received, strict=True) if g is not None and o.requires_grad]
        wanted = [leaf for leaf in leaves if leaf.requires_grad]
        named = [(n, p) for n, p in segment.named_parameters() if p.requires_grad]
        found: Sequence[Tensor | None] = [None] * (len(wanted) + len(named))
        if roots and found:
            found = torch.autograd.grad(
                [o for o, _ in roots],
                [*wanted, *(p for _, p in named)],
                [g for _, g in roots],
                allow_unused=True,
            )
        of_leaves = iter(found[: len(wanted)])
        received = tuple(next(of_leaves) if leaf.requires_grad else None for leaf in leaves)
        for (name, parameter), gradient in zip(named, found[len(wanted) :], strict=True):
            names[id(parameter)] = name  # of the first segment that uses it, at last
            per_use.setdefault(id(parameter), [])
            if gradient is not None:
                per_use[id(parameter)].insert(0, gradient)
    return {names[key]: _in_order(found) for key, found in per_use.items()}


def _in_order(gradients: Sequence[Tensor]) -> Tensor | None:
    total = None
    for gradient in gradients:
        total = gradient if total is None else total + gradient
    return total


def _first(output: Any) -> Tensor:
    return _tensors(output)[0]


def _tensors(output: Any) -> list[Tensor]:
    return [leaf for leaf in pytree.tree_leaves(output) if isinstance(leaf, Tensor)]
