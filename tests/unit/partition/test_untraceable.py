"""What no graph stands for is told before training, with the module's name; the model stays whole."""

import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

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


def count_of_values(_: Inner, x: Tensor) -> Tensor:
    return x if (x > 0).nonzero().size(0) > 0 else -x


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


def replaced_average(self: Inner, x: Tensor) -> Tensor:
    self.average = 0.9 * self.average + 0.1 * x.detach().mean(0)
    return x - self.average


class Reversal(torch.autograd.Function):
    """Changes the sign of a gradient."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:  # type: ignore[override]
        return -gradient


def own_backward(_: Inner, x: Tensor) -> Tensor:
    found: Tensor = Reversal.apply(x)
    return found


def gradient_hook(_: Inner, x: Tensor) -> Tensor:
    x.register_hook(lambda gradient: -gradient)
    return x


def reentrant(_: Inner, x: Tensor) -> Tensor:
    found: Tensor = checkpoint(torch.tanh, x, use_reentrant=True)
    return found


def mistake(_: Inner, x: Tensor) -> Tensor:
    return x @ torch.zeros(5, 5)


def whole_of(awkward: Callable[[Inner, Tensor], Tensor]) -> PartitionedModel:
    return cut(lambda: Outer(awkward), lambda: EXAMPLE)


@pytest.mark.parametrize(
    ("awkward", "reason"),
    [
        (branch, r"blocks.1 \(Inner\) cannot be traced: test_untraceable.py:\d+: .*data-dependent"),
        (item, r"blocks.1 \(Inner\) cannot be traced: test_untraceable.py:\d+: "),
        (count_of_values, r"blocks.1 \(Inner\) cannot be traced: test_untraceable.py:\d+: .*data-dependent"),
        (python_draw, r"blocks.1 \(Inner\) draws numbers from Python's random or from numpy"),
        (numpy_draw, r"blocks.1 \(Inner\) draws numbers from Python's random or from numpy"),
        (counter, r"blocks.1 \(Inner\) changes count"),
        (history, r"blocks.1 \(Inner\) changes seen"),
        (cache, r"blocks.1 \(Inner\) changes last"),
        (average, r"blocks.1 changes the tensor blocks.1.average in place"),
        (replaced_average, r"blocks.1 \(Inner\) changes average"),
        (own_backward, r"blocks.1 \(Inner\) calls Reversal, whose own backward"),
        (gradient_hook, r"blocks.1 \(Inner\) registers a gradient hook"),
        (reentrant, r"blocks.1 \(Inner\) calls CheckpointFunction, whose own backward"),
        (mistake, r"blocks.1 \(Inner\) cannot be traced: test_untraceable.py:\d+: RuntimeError"),
    ],
)
def test_the_reason_names_the_module(
    awkward: Callable[[Inner, Tensor], Tensor], reason: str, capfd: pytest.CaptureFixture[str]
):
    state = torch.get_rng_state(), random.getstate()
    model = whole_of(awkward)
    assert (model.num_segments, len(model.warnings)) == (1, 1)
    assert model.meta_segment(0).training
    assert re.search(reason, model.warnings[0]), model.warnings[0]
    assert torch.get_rng_state().equal(state[0])
    assert random.getstate() == state[1]
    assert capfd.readouterr() == ("", ""), "the tracer's own remarks reach the user"


def test_a_backward_hook_of_a_module_keeps_the_model_whole():
    def build() -> nn.Module:
        model = Outer(lambda _, x: x.relu())
        model.blocks[1].register_full_backward_hook(lambda *_: None)
        return model

    assert "BackwardHookFunction, whose own backward" in cut(build, lambda: EXAMPLE).warnings[0]


@pytest.mark.parametrize(
    "plain", [lambda _, x: x.relu(), lambda _, x: checkpoint(torch.tanh, x, use_reentrant=False)]
)
def test_a_model_without_awkward_lines_is_cut(plain: Callable[[Inner, Tensor], Tensor]):
    before = vars(torch.autograd.Function)["apply"], Tensor.register_hook
    assert whole_of(plain).warnings == ()
    assert (vars(torch.autograd.Function)["apply"], Tensor.register_hook) == before
