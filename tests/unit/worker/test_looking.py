from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch.optim import SGD, Adagrad, Adam, AdamW, Optimizer

from tests.support import toys
from tests.support.fleet import Fleet, assert_equal_bits
from varuna_runtime.worker.engine import RankEngine
from varuna_runtime.worker.looking import Looks

Read = Callable[[torch.nn.Parameter], object]
READS: dict[str, Read] = {
    "clone": lambda p: p.detach().clone(),
    "data": lambda p: p.data.clone(),
    "numpy": lambda p: p.detach().numpy(),
    "numpy of data": lambda p: p.data.numpy(),
    "array": lambda p: np.asarray(p.data),
    "norm": lambda p: torch.linalg.vector_norm(p),
    "list": lambda p: torch.stack([p, p]),
    "foreach": lambda p: torch._foreach_norm([p]),
    "item": lambda p: p.sum().item(),
    "copy": lambda p: torch.empty_like(p).copy_(p),
    "memory": lambda p: p.untyped_storage(),
}
MAKERS: dict[str, Callable[[list[torch.nn.Parameter]], object]] = {
    "sgd": lambda ps: SGD(ps, lr=0.1, momentum=0.9),
    "adam": lambda ps: Adam(ps, lr=0.1, amsgrad=True),
    "adamw by group": lambda ps: AdamW(
        [{"params": [p for p in ps if p.ndim > 1]}, {"params": [p for p in ps if p.dim() < 2], "lr": 1.0}]
    ),
    "adagrad": lambda ps: Adagrad(ps, initial_accumulator_value=0.1),
    "zeros": lambda ps: [torch.zeros_like(p) for p in ps if p.requires_grad and p.is_leaf],
}


def parameters() -> list[torch.nn.Parameter]:
    return [torch.nn.Parameter(torch.ones(3, 2)), torch.nn.Parameter(torch.ones(2))]


@pytest.mark.parametrize("read", READS)
def test_reading_values_is_noted(read: str) -> None:
    some = parameters()
    with Looks(some) as looks:
        READS[read](some[1])
    assert looks.are_noted


@pytest.mark.parametrize("maker", MAKERS)
def test_making_an_optimizer_of_torch_reads_no_values(maker: str) -> None:
    some = parameters()
    with Looks(some) as looks:
        MAKERS[maker](some)
    assert not looks.are_noted


class Anchored(SGD):
    """Draws the weights towards what they were when it was made; the anchors are in no state."""

    def __init__(self, named: Any) -> None:
        super().__init__(named, lr=0.1)
        self._anchors = {p: p.detach().clone() for g in self.param_groups for p in g["params"]}

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        super().step()
        for parameter, anchor in self._anchors.items():
            if not parameter.is_meta:
                parameter.lerp_(anchor, 0.25)


def anchored(named: Any) -> Optimizer:
    return Anchored(named)


def test_an_optimizer_made_from_initial_values_goes_on_with_equal_bits() -> None:
    training = replace(toys.mlp_training(), optimizer=anchored)
    undisturbed = Fleet(training, "2x1")
    undisturbed.train(2)
    resumed = Fleet(training, "2x1")
    resumed.engines = [
        RankEngine(
            training,
            resumed.settings,
            resumed.model,
            resumed.plan,
            resumed.network.link(rank),
            materialise=resumed.model.materialise_blank,
        )
        for rank in range(2)
    ]
    resumed.resume(undisturbed.snapshot())
    assert_equal_bits(resumed.train(2), undisturbed.train(2))
