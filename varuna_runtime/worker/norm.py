"""The global gradient norm from per-block sums of squares, folded in canonical order (contract E5)."""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import reduce
from operator import add

import torch
from torch import Tensor

from varuna_runtime.spec.model import TiedUse
from varuna_runtime.worker.accumulate import BLOCK, Piece, Space


class NormOrder:
    """Where each block of a stage stands in the canonical order: segment, parameter, block."""

    def __init__(self, spaces: Sequence[Space], copies: Collection[TiedUse]) -> None:
        """Leave out `copies`: uses of parameters that count elsewhere."""
        every = [
            ((space.segment, position), name, -(-shape.numel() // BLOCK))
            for space in spaces
            for position, name, shape in zip(space.positions, space.names, space.shapes, strict=True)
        ]
        self._first: dict[tuple[int, int], int] = {}  # block of each parameter
        self.num_blocks = 0
        self._scratch: Tensor | None = None  # for one block
        for place, name, num_blocks in sorted(every):
            if TiedUse(segment=place[0], name=name) not in copies:
                self._first[place] = self.num_blocks
                self.num_blocks += num_blocks

    def squares(self, space: Space, pieces: Sequence[Piece], values: Sequence[Tensor]) -> dict[int, Tensor]:
        """Return the float64 sum of squares of each block of these pieces, by its place in the order."""
        found: dict[int, Tensor] = {}
        for piece, value in zip(pieces, values, strict=True):
            first = self._first.get((space.segment, space.positions[piece.index]))
            if first is not None:
                for at, block in enumerate(torch.split(value.view(-1), BLOCK), first + piece.start // BLOCK):
                    found[at] = self._sum_of_squares(block)
        return found

    def partials(self, squares: Mapping[int, Tensor]) -> tuple[float, ...]:
        """Return the sums of squares of all blocks in order; 0 for those that are not given."""
        total = [0.0] * self.num_blocks
        if squares:
            for at, value in zip(squares, torch.stack(list(squares.values())).tolist(), strict=True):
                total[at] = value
        return tuple(total)

    def _sum_of_squares(self, block: Tensor) -> Tensor:
        parts = torch.view_as_real(block).view(-1) if block.is_complex() else block
        if self._scratch is None or self._scratch.numel() < parts.numel():
            self._scratch = torch.empty(parts.numel(), dtype=torch.float64, device=parts.device)
        return self._scratch[: parts.numel()].copy_(parts).square_().sum()


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
