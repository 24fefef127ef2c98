"""The global gradient norm from per-block sums of squares, folded in canonical order (contract E5)."""

import math
from collections.abc import Collection, Iterable
from functools import reduce
from operator import add

import torch
from torch import Tensor

from varuna_runtime.worker.accumulate import BLOCK, Space


def block_partials(space: Space, flat: Tensor, *, skip: Collection[str] = ()) -> list[Tensor]:
    """Return the float64 sums of squares of the blocks of every parameter not in `skip`, in order."""
    named = zip(space.names, torch.split(flat, [shape.numel() for shape in space.shapes]), strict=True)
    return [
        _squares(block)
        for name, values in named
        if name not in skip and values.numel()
        for block in torch.split(values, BLOCK)
    ]


def _squares(block: Tensor) -> Tensor:
    parts = torch.view_as_real(block) if block.is_complex() else block
    return parts.to(torch.float64).square().sum()


def fold(values: Iterable[float]) -> float:
    """Add floats from left to right; the builtin sum compensates from Python 3.12 on, so it is not used."""
    return reduce(add, values, 0.0)


def norm_of(partials: Iterable[float]) -> float:
    """Return the norm from partials in canonical order; not finite if any gradient is not."""
    total = fold(partials)
    return math.sqrt(total) if total >= 0.0 else math.nan


def clip_coefficient(norm: float, max_norm: float) -> float:
    """Return the factor of torch.nn.utils.clip_grad_norm_: at most 1."""
    return min(1.0, max_norm / (norm + 1e-6))
