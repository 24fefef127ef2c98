"""What a traced model checks of its inputs: that forward would take the path that was traced."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from varuna_runtime.spec.errors import ModelRefused

_SMALLEST = 3  # the tracer takes 0 and 1 for special, and so sizes from which 1 is subtracted


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimension:
    """One dimension of an input as it was traced."""

    where: str
    fixed: int | None  # the only size that forward works for; None: open
    symbol: Any  # sympy's, which conditions speak of; None if it was never open


class InputChecks(nn.Module):
    """Refuses inputs of sizes that the traced forward is not for."""

    def __init__(self, dimensions: Sequence[Sequence[Dimension]], conditions: Sequence[Any]) -> None:
        """Take the dimensions of each input, and sympy's conditions that forward branched on."""
        super().__init__()
        self._of = _Frozen(tuple(map(tuple, dimensions)), tuple(conditions))

    def forward(self, *inputs: Tensor) -> None:
        """Raise ModelRefused if a size or a condition differs; looks at each combination of sizes once."""
        sizes = tuple(tensor.shape for tensor in inputs)
        if sizes not in self._of.good:
            self._refuse(sizes)
            self._of.good.add(sizes)

    def _refuse(self, sizes: tuple[torch.Size, ...]) -> None:
        known: dict[Any, int] = {}
        for seen, wanted in zip(sizes, self._of.dimensions, strict=True):
            if len(seen) != len(wanted):
                name = wanted[0].where.partition(" dimension")[0] if wanted else "an input"
                raise ModelRefused(f"{name} has {len(seen)} dimensions; the first samples have {len(wanted)}")
            for size, dimension in zip(seen, wanted, strict=True):
                if dimension.fixed not in (None, size):
                    raise ModelRefused(
                        f"{dimension.where} has size {size}; forward only works for {dimension.fixed}, the "
                        "size in the first samples: pad to it, or set CutPoints in place of automatic cuts"
                    )
                if dimension.symbol is not None:
                    known[dimension.symbol] = size
        for condition in self._of.conditions:
            self._refuse_path(condition, known)

    def _refuse_path(self, condition: Any, known: dict[Any, int]) -> None:
        values = {symbol: known.get(symbol) for symbol in condition.free_symbols}
        if any(value is None or value < _SMALLEST for value in values.values()):
            return
        if bool(condition.subs(values)):
            return
        names = {str(d.symbol): d.where for wanted in self._of.dimensions for d in wanted}
        told = ", ".join(f"{names[str(symbol)]} is {values[symbol]}" for symbol in sorted(values, key=str))
        raise ModelRefused(
            f"forward branches on sizes: for the first samples {condition} held, but now {told}; "
            "pad to such sizes, or set CutPoints in place of automatic cuts"
        )


class OnlyTraining(nn.Module):
    """Stands before what was traced in training and may be something else in evaluation."""

    def __init__(self, what: str) -> None:
        super().__init__()
        self._what = what

    def forward(self) -> None:
        """Raise ModelRefused outside training."""
        if not self.training:
            self.refuse()

    def refuse(self) -> None:
        """Raise ModelRefused: the model is to be evaluated."""
        raise ModelRefused(
            f"{self._what} draws random numbers by itself, and would do so in evaluation as well; use "
            "nn.Dropout, which stops there, or set CutPoints in place of automatic cuts"
        )


class _Frozen:
    """Shared by all copies of a segment."""

    def __init__(self, dimensions: tuple[tuple[Dimension, ...], ...], conditions: tuple[Any, ...]) -> None:
        self.dimensions = dimensions
        self.conditions = conditions
        self.good: set[tuple[torch.Size, ...]] = set()

    def __deepcopy__(self, memo: dict[int, Any]) -> "_Frozen":
        return self
