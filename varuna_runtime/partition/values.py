"""Initial values of a model's tensors, made one at a time from the recorded construction."""

from collections import defaultdict
from collections.abc import Mapping
from itertools import pairwise

import torch
from torch import Tensor
from torch.nn.parameter import is_lazy

from varuna_runtime.partition.construction import Construction
from varuna_runtime.partition.pretrained import Stored
from varuna_runtime.partition.recording import TensorRef, draws
from varuna_runtime.partition.replay import replay
from varuna_runtime.spec.errors import ModelRefused


class InitialValues:
    """Knows every tensor of a model by name, in canonical order, and can make each of them real."""

    def __init__(
        self, construction: Construction, tensors: Mapping[str, Tensor], stored: Mapping[int, Stored]
    ) -> None:
        for name, tensor in tensors.items():
            if is_lazy(tensor):
                raise ModelRefused(f"{name!r} has no shape yet; use a module that is not lazy")
        self._recording = construction.recording
        refs = {name: construction.ref(t, name) for name, t in tensors.items() if t.device.type == "meta"}
        _refuse_overlap(refs)
        self._draws = draws(self._recording, refs)
        self._refs = {id(tensors[name]): ref for name, ref in refs.items()}
        self._stored = stored

    def of(self, tensor: Tensor, *, seed: int, device: torch.device) -> Tensor:
        """Return fresh real values of one of the model's tensors; call inside `replaying`.

        A tensor that was real from the start (a constant given as numbers) is copied.
        """
        return _like(tensor, self._on_cpu(tensor, seed).detach().to(device))

    def _on_cpu(self, tensor: Tensor, seed: int) -> Tensor:
        if id(tensor) in self._stored:
            return self._stored[id(tensor)].read(tensor.dtype)
        ref = self._refs.get(id(tensor))
        return tensor.clone() if ref is None else replay(self._recording, ref, self._draws, seed)


def blank(tensor: Tensor, *, device: torch.device) -> Tensor:
    """Return a tensor like one of the model's for values that are still to come: not a number until then."""
    value = torch.empty_like(tensor.detach(), device=device)
    is_number = value.is_floating_point() or value.is_complex()
    return _like(tensor, value.fill_(float("nan") if is_number else 0))


def _like(tensor: Tensor, value: Tensor) -> Tensor:
    if not isinstance(tensor, torch.nn.Parameter):
        return value
    parameter = torch.nn.Parameter(value, requires_grad=tensor.requires_grad)
    vars(parameter).update(vars(tensor))
    return parameter


def _refuse_overlap(refs: Mapping[str, TensorRef]) -> None:
    """Raise ModelRefused if two tensors of the model share memory without being the same object."""
    by_storage: dict[int, list[str]] = defaultdict(list)
    for name, ref in refs.items():
        by_storage[ref.storage].append(name)
    for names in by_storage.values():
        names.sort(key=lambda name: refs[name].extent.start)
        for one, other in pairwise(names):
            if refs[other].extent.start < refs[one].extent.stop:
                remedy = "tie them by assigning the same Parameter, or copy one of them"
                if one.endswith("_orig"):
                    remedy = (
                        "torch.nn.utils.spectral_norm makes such pairs, and goes on with its power "
                        "iteration in every forward: use weight_norm of torch.nn.utils.parametrizations"
                    )
                raise ModelRefused(f"{one!r} and {other!r} share memory but are different tensors; {remedy}")
