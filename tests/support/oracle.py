"""A plain PyTorch loop on the whole model, on its own idea of the canonical sums.

It imports nothing of worker or partition: random keys and batches come in as data.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

Batch = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Batch], Tensor | tuple[Tensor, Tensor]]
Fold = Callable[[list[Tensor]], Tensor]


def halves(values: list[Tensor]) -> Tensor:
    """Sum by a binary tree whose left side is the largest power of two."""
    if len(values) == 1:
        return values[0]
    left = 2 ** math.ceil(math.log2(len(values)) - 1)
    return halves(values[:left]) + halves(values[left:])


def in_order(values: list[Tensor]) -> Tensor:
    """Sum from left to right."""
    total = values[0].clone()
    for value in values[1:]:
        total += value
    return total


@dataclass
class Oracle:
    """One training of a model given as its parts; a tied use is an untied copy named in `copies`."""

    parts: Sequence[nn.Module]
    loss: Loss
    optimizer: torch.optim.Optimizer
    keys: Callable[[int, int, int], int]  # (step, micro-batch, part) -> seed
    virtual_replicas: int
    clip: float | None = None
    scheduler: Any = None
    copies: Mapping[str, str] | None = None  # name of a copy -> name of the original
    across: Fold = halves

    def named(self) -> dict[str, nn.Parameter]:
        return {f"{i}.{n}": p for i, part in enumerate(self.parts) for n, p in part.named_parameters()}

    def train_step(self, step: int, batches: Sequence[Batch]) -> float:
        """Do one step and return its mean loss."""
        found = [self._micro_batch(step, index, batch) for index, batch in enumerate(batches)]
        loss_sum = sum_of(float(f[0]) for f in found)
        weight = sum_of(float(f[1]) for f in found)
        names = list(self.named())
        per_micro = [dict(zip(names, f[2], strict=True)) for f in found]
        gradients = {name: self._sum([g[name] for g in per_micro]) for name in names}
        for copy, original in (self.copies or {}).items():
            gradients[original] = gradients[copy] = gradients[original] + gradients[copy]
        gradients = {name: g / weight for name, g in gradients.items()}
        self._clip(gradients)
        for name, parameter in self.named().items():
            parameter.grad = gradients[name].clone()
        self.optimizer.step()
        if self.scheduler is not None:
            self.scheduler.step()
        return loss_sum / weight

    def _micro_batch(self, step: int, index: int, batch: Batch) -> tuple[Tensor, Tensor, Sequence[Tensor]]:
        values: Any = (batch[0],)
        for place, part in enumerate(self.parts):
            torch.manual_seed(self.keys(step, index, place))
            values = part(*values)
            values = values if isinstance(values, tuple) else (values,)
        result = self.loss(values[0], batch)
        rows = torch.tensor(float(len(batch[0])))
        loss_sum, weight = result if isinstance(result, tuple) else (result * rows, rows)
        gradients = torch.autograd.grad(loss_sum, list(self.named().values()))
        return loss_sum.detach(), weight, gradients

    def _sum(self, micro: list[Tensor]) -> Tensor:
        virtual = min(self.virtual_replicas, len(micro))
        edges = [v * len(micro) // virtual for v in range(virtual + 1)]
        leaves = [in_order(micro[a:b]) for a, b in itertools.pairwise(edges)]
        return self.across(leaves)

    def _clip(self, gradients: dict[str, Tensor]) -> None:
        if self.clip is None:
            return
        squares = (
            float(g.double().square().sum()) for n, g in gradients.items() if n not in (self.copies or {})
        )
        norm = math.sqrt(sum_of(squares))
        factor = min(1.0, self.clip / (norm + 1e-6))
        if factor < 1.0:
            for gradient in {id(g): g for g in gradients.values()}.values():
                gradient.mul_(factor)


def sum_of(values: Any) -> float:
    total = 0.0
    for value in values:
        total += value
    return total
