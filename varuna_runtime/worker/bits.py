"""Compares values bit by bit; reads only."""

from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils import _pytree as pytree


def difference(one: Any, other: Any) -> str | None:
    """Return where two nested values first differ, such as `['x'][0]`, or None if they are equal.

    Tensors, arrays and plain values count; objects of other kinds are taken as equal.
    """
    ones, one_spec = pytree.tree_flatten_with_path(one)
    others, other_spec = pytree.tree_flatten_with_path(other)
    if one_spec != other_spec:
        return ""
    for (path, a), (_, b) in zip(ones, others, strict=True):
        if not _is_same(a, b):
            return pytree.keystr(path)
    return None


def is_same_tensor(one: Tensor, other: Tensor) -> bool:
    """True if dtype, shape and every bit are equal; NaN equals the same NaN."""
    if one.dtype != other.dtype or one.shape != other.shape or one.layout != other.layout:
        return False
    if one.layout is not torch.strided:
        return bool(torch.equal(one.to_dense(), other.to_dense()))
    return bool(torch.equal(raw(one), raw(other)))


def _is_same(one: Any, other: Any) -> bool:
    if isinstance(one, Tensor) and isinstance(other, Tensor):
        return is_same_tensor(one, other)
    if isinstance(one, np.ndarray) and isinstance(other, np.ndarray):
        return one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes()
    if isinstance(one, float) and isinstance(other, float):
        return one.hex() == other.hex()
    if isinstance(one, str | bytes | int | np.generic):
        return type(one) is type(other) and bool(one == other or one != one)
    return type(one) is type(other)


def raw(tensor: Tensor) -> Tensor:
    """Return the bytes of a tensor's values in order, shape (bytes,); a copy where they do not lie so."""
    plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
    # Of one element any stride is contiguous, and no view as bytes.
    return plain.as_strided((plain.numel(),), (1,)).view(torch.uint8)
