"""Constructions whose tensors could not be made one at a time, and what a person is told about them."""

from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from varuna_runtime.partition import cut
from varuna_runtime.spec.errors import ModelRefused

CPU = torch.device("cpu")


@dataclass
class _Box:
    value: Tensor


def test_a_tensor_hidden_in_an_object_is_refused():
    def build() -> nn.Module:
        module = nn.Linear(2, 2)
        module.box = _Box(torch.ones(3))
        return module

    with pytest.raises(ModelRefused, match=r"a tensor of shape \(3,\) inside an object"):
        cut(build).materialise(0, seed=0, device=CPU)


def test_looking_at_random_values_is_refused():
    with pytest.raises(ModelRefused, match="randomly initialised"):
        cut(lambda: nn.Linear(int(torch.rand(1).item() * 4) + 1, 2))


def test_different_parameters_in_the_same_memory_are_refused_by_name():
    def build() -> nn.Module:
        one, other = nn.Linear(2, 2), nn.Linear(2, 2)
        other.weight.data = one.weight.data
        return nn.Sequential(one, other)

    with pytest.raises(ModelRefused, match=r"'0\.weight' and '1\.weight' share memory"):
        cut(build)


def test_lazy_modules_are_refused_by_name():
    with pytest.raises(ModelRefused, match="lazy"):
        cut(lambda: nn.Sequential(nn.LazyLinear(3)))


def test_errors_of_the_construction_pass_through():
    def build() -> nn.Module:
        raise KeyError("config")

    with pytest.raises(KeyError, match="config"):
        cut(build)
