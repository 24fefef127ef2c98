"""Nested values are compared bit by bit, and the first difference is named."""

from typing import Any

import numpy as np
import pytest
import torch

from varuna_runtime.worker.bits import difference, is_same_tensor


@pytest.mark.parametrize(
    ("one", "other", "where"),
    [
        (torch.ones(2), torch.ones(2), None),
        (torch.tensor([0.0]), torch.tensor([-0.0]), ""),
        (torch.tensor(float("nan")), torch.tensor(float("nan")), None),
        (torch.ones(2), torch.ones(2, dtype=torch.float64), ""),
        ({"x": [torch.ones(2), 1]}, {"x": [torch.ones(2), 2]}, "['x'][1]"),
        ((np.ones(2), "a"), (np.ones(2), "a"), None),
        ((np.ones(2), "a"), (np.zeros(2), "a"), "[0]"),
        ([1, 2], [1], ""),
        (0.0, -0.0, ""),
        (float("nan"), float("nan"), None),
        (1, 1.0, ""),
        (np.float32(1), np.float32(1), None),
        (torch.eye(2).to_sparse(), torch.eye(2).to_sparse(), None),
        (torch.eye(2).to_sparse(), torch.zeros(2, 2).to_sparse(), ""),
        (torch.tensor([1 + 2j]).conj(), torch.tensor([1 - 2j]), None),
        (torch.tensor([1 + 2j]).conj().imag, torch.tensor([2.0]), ""),
        (object(), object(), None),
    ],
)
def test_the_place_of_the_first_difference_is_named(one: Any, other: Any, where: str | None) -> None:
    assert difference(one, other) == where


def test_strides_do_not_matter() -> None:
    assert is_same_tensor(torch.ones(2, 3), torch.ones(3, 2).T)
