"""Sums and weights of an evaluation: out of what a script measures, folded in order of micro-batch."""

import json
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from varuna_runtime.spec.errors import ModelRefused
from varuna_runtime.spec.manifest import Figure

MOST_METRICS, MOST_CHARS = 100, 100


@dataclass(frozen=True, slots=True)
class Measure:
    """One figure of one micro-batch."""

    name: str
    total: float
    weight: float


Measures = tuple[Measure, ...]


def measures_of(found: object, rows: int) -> Measures:
    """Return what `metrics` returned; a mean weighs its rows. Raises ModelRefused on anything odd."""
    if not isinstance(found, Mapping):
        raise ModelRefused(f"metrics returned {type(found).__name__}; wanted a dict of names to numbers")
    if len(found) > MOST_METRICS:
        raise ModelRefused(f"metrics returned {len(found)} figures; wanted at most {MOST_METRICS}")
    return tuple(_measure(name, value, rows) for name, value in found.items())


def _measure(name: object, value: object, rows: int) -> Measure:
    if not isinstance(name, str) or name in ("", "loss") or len(name) > MOST_CHARS:
        raise ModelRefused(
            f"metrics: seen the name {name!r}, wanted a text of at most {MOST_CHARS} characters, not `loss`"
        )
    if isinstance(value, tuple | list) and len(value) == 2:
        return Measure(name, _number(name, value[0]), _number(name, value[1]))
    return Measure(name, _number(name, value) * rows, float(rows))


def _number(name: str, value: object) -> float:
    if isinstance(value, Tensor) and value.numel() == 1:
        return float(value)
    if isinstance(value, int | float | np.number | np.bool_):
        return float(value)
    shape = f" of shape {list(value.shape)}" if isinstance(value, Tensor | np.ndarray) else ""
    raise ModelRefused(
        f"metrics: {name} is a {type(value).__name__}{shape}; "
        "wanted a mean over the rows, or a pair (sum, weight)"
    )


class Folding:
    """Adds up micro-batches in float64; they must come in order."""

    def __init__(self) -> None:
        self._sums: dict[str, tuple[float, float]] = {}

    def add(self, measures: Measures) -> None:
        """Add one micro-batch."""
        for measure in measures:
            total, weight = self._sums.get(measure.name, (0.0, 0.0))
            self._sums[measure.name] = total + measure.total, weight + measure.weight

    def figures(self) -> tuple[Figure, ...]:
        """Return the means, in order of first appearance; NaN where no weight is."""
        return tuple(
            Figure(name=name, value_hex=(total / weight if weight else math.nan).hex(), weight=weight)
            for name, (total, weight) in self._sums.items()
        )


def packed(batches: Iterable[Measures]) -> Tensor:
    """Return micro-batches as a message between ranks; every bit survives."""
    return _bytes([[(m.name, m.total.hex(), m.weight.hex()) for m in batch] for batch in batches])


def unpacked(message: Tensor) -> tuple[Measures, ...]:
    """Return what `packed` was given."""
    return tuple(
        tuple(Measure(name, float.fromhex(total), float.fromhex(weight)) for name, total, weight in batch)
        for batch in _plain(message)
    )


def packed_figures(figures: Iterable[Figure]) -> Tensor:
    """Return figures as a message between ranks."""
    return _bytes([(f.name, f.value_hex, f.weight.hex()) for f in figures])


def unpacked_figures(message: Tensor) -> tuple[Figure, ...]:
    """Return what `packed_figures` was given."""
    return tuple(
        Figure(name=name, value_hex=value_hex, weight=float.fromhex(weight))
        for name, value_hex, weight in _plain(message)
    )


def _bytes(plain: object) -> Tensor:
    return torch.frombuffer(bytearray(json.dumps(plain).encode()), dtype=torch.uint8)


def _plain(message: Tensor) -> list[Any]:
    found: list[Any] = json.loads(message.numpy().tobytes())
    return found
