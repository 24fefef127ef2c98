"""What no graph stands for is told before training, with the module's name; the model stays whole."""

import random
import re
from collections.abc import Callable

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from varuna_runtime.partition import ExampleInput, PartitionedModel, cut

EXAMPLE = (ExampleInput(shape=(2, 4), dtype="float32"),)


class Inner(nn.Module):
    """A block with one awkward line."""

    def __init__(self, awkward: "Callable[[Inner, Tensor], Tensor]") -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)
        self.count = 0
        self.seen: list[int] = []
        self.register_buffer("average", torch.zeros(4))
        self.awkward = awkward

    def forward(self, x: Tensor) -> Tensor:
        return self.awkward(self, self.linear(x))


class Outer(nn.Module):
    def __init__(self, awkward: Callable[[Inner, Tensor], Tensor]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList([Inner(lambda _, x: x), Inner(awkward)])

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def branch(_: Inner, x: Tensor) -> Tensor:
    return x if x.sum() > 0 else -x


def item(_: Inner, x: Tensor) -> Tensor:
    return x * float(x.max()) if x.max().item() > 2 else x


def python_draw(_: Inner, x: Tensor) -> Tensor:
    return x * random.random()


def numpy_draw(_: Inner, x: Tensor) -> Tensor:
    return x + torch.from_numpy(np.random.rand(4).astype("float32"))


def counter(self: Inner, x: Tensor) -> Tensor:
    self.count += 1
    return x * self.count


def history(self: Inner, x: Tensor) -> Tensor:
    self.seen.append(1)
    return x * len(self.seen)


def cache(self: Inner, x: Tensor) -> Tensor:
    self.last = x
    return self.last


def average(self: Inner, x: Tensor) -> Tensor:
    self.average.mul_(0.9).add_(x.detach().mean(0))
    return x - self.average


def mistake(_: Inner, x: Tensor) -> Tensor:
    return x @ torch.zeros(5, 5)


def whole_of(awkward: Callable[[Inner, Tensor], Tensor]) -> PartitionedModel:
    return cut(lambda: Outer(awkward), lambda: EXAMPLE)


@pytest.mark.parametrize(
    ("awkward", "reason"),
    [
        (branch, r"blocks.1 \(Inner\) cannot be traced: test_untraceable.py:\d+: .*data-dependent"),
        (item, r"blocks.1 \(Inner\) cannot be traced: test_untraceable.py:\d+: "),
        (python_draw, r"blocks.1 \(Inner\) draws numbers from Python's random or from numpy"),
        (numpy_draw, r"blocks.1 \(Inner\) draws numbers from Python's random or from numpy"),
        (counter, r"blocks.1 \(Inner\) changes count"),
        (history, r"blocks.1 \(Inner\) changes seen"),
        (cache, r"blocks.1 \(Inner\) changes last"),
        (average, r"blocks.1 changes the tensor blocks.1.average in place"),
        (mistake, r"blocks.1 \(Inner\) cannot be traced: test_untraceable.py:\d+: RuntimeError"),
    ],
)
def test_the_reason_names_the_module(awkward: Callable[[Inner, Tensor], Tensor], reason: str):
    state = torch.get_rng_state(), random.getstate()
    model = whole_of(awkward)
    assert (model.num_segments, len(model.warnings)) == (1, 1)
    assert model.meta_segment(0).training
    assert re.search(reason, model.warnings[0]), model.warnings[0]
    assert torch.get_rng_state().equal(state[0])
    assert random.getstate() == state[1]


def test_a_model_without_awkward_lines_is_cut():
    assert whole_of(lambda _, x: x.relu()).warnings == ()
