"""A plain PyTorch loop on the whole, uncut model, on its own idea of the canonical sums.

It imports nothing of worker or partition: names, random keys and batches come in as data.
"""

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
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

    `ends` names the modules whose end begins a segment: there the generators are seeded anew.
    """

    model: nn.Module
    loss: Loss
    optimizer: Callable[[list[tuple[str, nn.Parameter]]], torch.optim.Optimizer]
    keys: Callable[[int, int, int], int]  # (step, micro-batch, segment) -> seed
    virtual_replicas: int
    ends: Mapping[str, int] = field(default_factory=dict)  # module -> the segment after it
    copies: Mapping[str, str] = field(default_factory=dict)  # name of a copy -> name of the original
    names: Mapping[str, str] = field(default_factory=dict)  # of parameters whose job knows them otherwise
    inputs: Callable[[Any], Any] = lambda batch: batch[0]  # a tensor, a tuple, or keyword arguments
    input_keys: Callable[[int, int], int] | None = None  # (step, micro-batch) -> seed of `inputs`
    order: Sequence[str] | None = None  # of parameters in the norm; default: the model's own
    clip: float | None = None
    scheduler: Callable[[torch.optim.Optimizer], Any] | None = None
    autocast: torch.dtype | None = None
    scale: float = 1.0  # of the loss; halved after every step that overflows
    across: Fold = halves

    def __post_init__(self) -> None:
        self.model.train()
        self.made = self.optimizer([(n, p) for n, p in self.named().items() if n not in self.copies])
        self._schedule = None if self.scheduler is None else self.scheduler(self.made)
        self._norms = [
            m for m in self.model.modules() if isinstance(m, _BatchNorm) and m.running_mean is not None
        ]
        self._now = (0, 0)
        self._has_applied = False
        for name, segment in self.ends.items():
            self.model.get_submodule(name).register_forward_hook(
                lambda *_, segment=segment: self._seed(segment)
            )

    def named(self) -> dict[str, nn.Parameter]:
        return {self.names.get(name, name): p for name, p in self.model.named_parameters()}

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
        final = {name: g / (weight * self.scale) for name, g in gradients.items() if g is not None}
        loss = sum_of(float(f.loss_sum) for f in found) / weight
        norm = self._norm(final)
        if math.isfinite(norm) and math.isfinite(loss):
            self._apply(final, norm)
            self._fold([f.statistics for f in found])
        else:
            self._back_off(weight / len(found))
        return loss

    def _micro_batch(self, step: int, index: int, batch: Any) -> _Pass:
        self._now = (step, index)
        if self.input_keys is not None:
            torch.manual_seed(self.input_keys(step, index))
        given = self.inputs(batch)
        self._seed(0)
        with statistics_of_batch(self._norms) as statistics, self._precision():
            loss_sum, weight = _weighted(self.loss(self._called(given), batch), batch)
        trained = {n: p for n, p in self.named().items() if p.requires_grad}
        found = torch.autograd.grad(loss_sum * self.scale, list(trained.values()), allow_unused=True)
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

    def _norm(self, gradients: Mapping[str, Tensor]) -> float:
        ordered = [name for name in self.order or gradients if name in gradients]
        blocks = (block for name in ordered for block in gradients[name].flatten().split(BLOCK))
        return math.sqrt(sum_of(float(block.double().square().sum()) for block in blocks))

    def _apply(self, gradients: Mapping[str, Tensor], norm: float) -> None:
        self._has_applied = True
        factor = 1.0 if self.clip is None else min(1.0, self.clip / (norm + 1e-6))
        named = self.named()
        for name, parameter in named.items():
            gradient = gradients.get(name)
            parameter.grad = gradient if gradient is None or factor == 1.0 else gradient.mul_(factor)
        self.made.step()
        if self._schedule is not None:
            self._schedule.step()
        with torch.no_grad():
            for copy, original in self.copies.items():
                named[copy].copy_(named[original])

    def _back_off(self, weight: float) -> None:
        """Halve the scale; before any step was applied, take the weight of a micro-batch off 2^16."""
        assert self.autocast is torch.float16, "nothing to scale, and not finite"
        self.scale /= 2
        if not self._has_applied:
            self.scale = min(self.scale, 2.0 ** (16 - math.ceil(math.log2(max(weight, 1.0)))))

    def _fold(self, per_micro: Sequence[list[tuple[Tensor, Tensor]]]) -> None:
        """Update running statistics by each micro-batch in turn."""
        for records in per_micro:
            for norm, (mean, var) in zip(self._norms, records, strict=True):
                own_mean, own_var, seen = _buffers(norm)
                seen += 1
                factor = 1.0 / float(seen) if norm.momentum is None else norm.momentum
                norm.running_mean = own_mean * (1.0 - factor) + mean * factor
                norm.running_var = own_var * (1.0 - factor) + var * factor


@contextmanager
def statistics_of_batch(norms: Sequence[_BatchNorm]) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Lend buffers of zeros to a forward and list what it leaves there: each batch's mean and variance."""
    kept = [(norm.momentum, _buffers(norm)) for norm in norms]
    found: list[tuple[Tensor, Tensor]] = []
    for norm, (_, (mean, var, seen)) in zip(norms, kept, strict=True):
        norm.momentum = 1.0
        norm.running_mean, norm.running_var, norm.num_batches_tracked = mean * 0, var * 0, seen * 0
    yield found
    for norm, (momentum, own) in zip(norms, kept, strict=True):
        found.append(_buffers(norm)[:2])
        norm.momentum = momentum
        norm.running_mean, norm.running_var, norm.num_batches_tracked = own


def _buffers(norm: _BatchNorm) -> tuple[Tensor, Tensor, Tensor]:
    mean, var, seen = norm.running_mean, norm.running_var, norm.num_batches_tracked
    assert mean is not None
    assert var is not None
    assert seen is not None
    return mean, var, seen


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
