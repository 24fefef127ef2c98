"""Tells whether code looks at values of tensors, or only at what they are like; what is unknown is a look."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.overrides import TorchFunctionMode

_PROPERTIES = (
    "shape", "dtype", "device", "layout", "ndim", "names", "requires_grad", "is_leaf", "grad", "is_meta",
    "is_cpu", "is_cuda", "is_xpu", "is_mps", "is_hpu", "is_ipu", "is_sparse", "is_sparse_csr", "is_quantized",
)  # fmt: skip
_METHODS = (
    "size", "dim", "numel", "nelement", "stride", "storage_offset", "is_contiguous", "is_floating_point",
    "is_complex", "element_size", "get_device", "type", "__hash__", "__len__", "new_empty", "new_zeros",
    "new_ones", "new_full",
)  # fmt: skip
_FUNCTIONS: tuple[Any, ...] = (
    torch.is_tensor,
    torch.is_complex,
    torch.is_floating_point,
    torch.numel,
    torch.empty_like,
    torch.zeros_like,
    torch.ones_like,
    torch.full_like,
)


def _blind() -> frozenset[Any]:
    properties = (getattr(Tensor, name).__get__ for name in _PROPERTIES if hasattr(Tensor, name))
    return frozenset({*_FUNCTIONS, *properties, *(getattr(Tensor, name) for name in _METHODS)})


class Looks(TorchFunctionMode):
    """While it is entered, notes whether any of `tensors` is looked at."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        super().__init__()
        self._watched = {id(tensor) for tensor in tensors}
        self._blind = _blind()
        self.are_noted = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """See torch.overrides."""
        given = {} if kwargs is None else kwargs
        if func not in self._blind and self._is_about_them((args, given)):
            self.are_noted = True
        return func(*args, **given)

    def _is_about_them(self, value: object) -> bool:
        if isinstance(value, Tensor):
            return id(value) in self._watched
        if isinstance(value, Mapping):
            return any(map(self._is_about_them, value.values()))
        return isinstance(value, tuple | list) and any(map(self._is_about_them, value))
