"""A plain PyTorch loop on the whole, uncut model, on its own idea of the canonical sums.

It imports nothing of worker or partition: names, random keys and batches come in as data.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

Loss = Callable[[Any, Any], Tensor | tuple[Tensor, Tensor]]
Fold = Callable[[list[Tensor]], Tensor]
BLOCK = 2**18  # elements over which squares are summed at once


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


def untie(model: nn.Module, copies: Mapping[str, str]) -> None:
    """Give every use named in `copies` (copy -> original) a parameter of its own, with the same values."""
    for name in copies:
        owner, _, leaf = name.rpartition(".")
        module = model.get_submodule(owner)
        setattr(module, leaf, nn.Parameter(getattr(module, leaf).detach().clone()))


@dataclass(frozen=True)
class _Pass:
    """What one micro-batch gave."""

    loss_sum: Tensor
    weight: float
    gradients: dict[str, Tensor | None]
    statistics: list[tuple[Tensor, Tensor]]


@dataclass
class Oracle:
    """One training of a model whose tied uses are untied copies, named in `copies`.

    `starts` names the modules whose forward begins a segment: there the generators are seeded anew.
    """

    model: nn.Module
    loss: Loss
    optimizer: Callable[[list[tuple[str, nn.Parameter]]], torch.optim.Optimizer]
    keys: Callable[[int, int, int], int]  # (step, micro-batch, segment) -> seed
    virtual_replicas: int
    starts: Mapping[str, int] = field(default_factory=dict)  # module -> segment
    copies: Mapping[str, str] = field(default_factory=dict)  # name of a copy -> name of the original
    inputs: Callable[[Any], Any] = lambda batch: batch[0]  # a tensor, a tuple, or keyword arguments
    input_keys: Callable[[int, int], int] | None = None  # (step, micro-batch) -> seed of `inputs`
    order: Sequence[str] | None = None  # of parameters in the norm; default: the model's own
    clip: float | None = None
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None
    autocast: torch.dtype | None = None
    across: Fold = halves

    def __post_init__(self) -> None:
        self.model.train()
        self.made = self.optimizer([(n, p) for n, p in self.named().items() if n not in self.copies])
        self._schedule = None if self.scheduler is None else self.scheduler(self.made)
        self._norms = [
            m for m in self.model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None
        ]
        self._now = (0, 0)
        for name, segment in self.starts.items():
            self.model.get_submodule(name).register_forward_pre_hook(
                lambda *_, segment=segment: self._seed(segment)
            )

    def named(self) -> dict[str, nn.Parameter]:
        return dict(self.model.named_parameters())

    def train_step(self, step: int, batches: Sequence[Any]) -> float:
        """Do one step and return its mean loss."""
        found = [self._micro_batch(step, index, batch) for index, batch in enumerate(batches)]
        weight = sum_of(f.weight for f in found)
        gradients = {
            name: self._sum([f.gradients[name] for f in found])
            for name, p in self.named().items()
            if p.requires_grad
        }
        for copy, original in self.copies.items():
            if copy in gradients:
                gradients[original] = _added(gradients[original], gradients.pop(copy))
        final = {name: g / weight for name, g in gradients.items() if g is not None}
        self._clip(final)
        self._apply(final)
        self._fold([f.statistics for f in found])
        return sum_of(float(f.loss_sum) for f in found) / weight

    def _micro_batch(self, step: int, index: int, batch: Any) -> _Pass:
        self._now = (step, index)
        if self.input_keys is not None:
            torch.manual_seed(self.input_keys(step, index))
        given = self.inputs(batch)
        kept = [self._lend(norm) for norm in self._norms]
        self._seed(0)
        with self._precision():
            loss_sum, weight = _weighted(self.loss(self._called(given), batch), batch)
        statistics = [self._take_back(norm, *state) for norm, state in zip(self._norms, kept, strict=True)]
        trained = {n: p for n, p in self.named().items() if p.requires_grad}
        found = torch.autograd.grad(loss_sum, list(trained.values()), allow_unused=True)
        return _Pass(loss_sum.detach(), float(weight), dict(zip(trained, found, strict=True)), statistics)

    def _called(self, given: Any) -> Any:
        if isinstance(given, Mapping):
            return self.model(**given)
        return self.model(*given) if isinstance(given, tuple | list) else self.model(given)

    def _seed(self, segment: int) -> None:
        torch.manual_seed(self.keys(*self._now, segment))

    def _precision(self) -> AbstractContextManager[Any]:
        if self.autocast is None:
            return nullcontext()
        return torch.autocast("cpu", dtype=self.autocast, cache_enabled=False)

    def _sum(self, micro: list[Tensor | None]) -> Tensor | None:
        if all(g is None for g in micro):
            return None
        shaped = next(g for g in micro if g is not None)
        whole = [torch.zeros_like(shaped) if g is None else g for g in micro]
        virtual = min(self.virtual_replicas, len(micro))
        edges = [v * len(micro) // virtual for v in range(virtual + 1)]
        return self.across([in_order(whole[a:b]) for a, b in itertools.pairwise(edges)])

    def _clip(self, gradients: dict[str, Tensor]) -> None:
        if self.clip is None:
            return
        ordered = [n for n in self.order or gradients if n in gradients]
        squares = (
            float(block.double().square().sum())
            for n in ordered
            for block in gradients[n].flatten().split(BLOCK)
        )
        factor = min(1.0, self.clip / (math.sqrt(sum_of(squares)) + 1e-6))
        if factor < 1.0:
            for gradient in gradients.values():
                gradient.mul_(factor)

    def _apply(self, gradients: Mapping[str, Tensor]) -> None:
        named = self.named()
        for name, parameter in named.items():
            parameter.grad = gradients.get(name)
        self.made.step()
        if self._schedule is not None:
            self._schedule.step()
        with torch.no_grad():
            for copy, original in self.copies.items():
                named[copy].copy_(named[original])

    def _lend(self, norm: _BatchNorm) -> tuple[Tensor, Tensor, float | None]:
        """Let a forward leave its batch's statistics in buffers of zeros; return the real ones."""
        mean, var, momentum = norm.running_mean, norm.running_var, norm.momentum
        assert mean is not None
        assert var is not None
        norm.running_mean, norm.running_var, norm.momentum = mean * 0, var * 0, 1.0
        return mean, var, momentum

    def _take_back(
        self, norm: _BatchNorm, mean: Tensor, var: Tensor, momentum: float | None
    ) -> tuple[Tensor, Tensor]:
        seen_mean, seen_var = norm.running_mean, norm.running_var
        assert seen_mean is not None
        assert seen_var is not None
        norm.running_mean, norm.running_var, norm.momentum = mean, var, momentum
        return seen_mean, seen_var

    def _fold(self, per_micro: Sequence[list[tuple[Tensor, Tensor]]]) -> None:
        """Update running statistics by each micro-batch in turn."""
        for place, norm in enumerate(self._norms):
            assert norm.running_mean is not None
            assert norm.running_var is not None
            assert norm.num_batches_tracked is not None
            seen = int(norm.num_batches_tracked) - len(per_micro)  # forward counted them already
            for at, records in enumerate(per_micro, start=1):
                factor = 1.0 / (seen + at) if norm.momentum is None else norm.momentum
                mean, var = records[place]
                norm.running_mean = norm.running_mean * (1.0 - factor) + mean * factor
                norm.running_var = norm.running_var * (1.0 - factor) + var * factor


def _added(one: Tensor | None, other: Tensor | None) -> Tensor | None:
    if one is None or other is None:
        return other if one is None else one
    return one + other


def _weighted(result: Tensor | tuple[Tensor, Tensor], batch: Any) -> tuple[Tensor, Tensor]:
    if isinstance(result, tuple):
        return result
    rows = torch.tensor(float(num_rows(batch)))
    return result * rows, rows


def num_rows(batch: Any) -> int:
    """Return how many samples a collated batch holds."""
    while not isinstance(batch, Tensor):
        batch = next(iter(batch.values() if isinstance(batch, Mapping) else batch))
    return len(batch)


def sum_of(values: Iterable[float]) -> float:
    total = 0.0
    for value in values:
        total += value
    return total
