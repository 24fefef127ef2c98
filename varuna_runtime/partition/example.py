"""What a micro-batch looks like to a model: names, shapes and types of its inputs, no values."""

import inspect
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from varuna_runtime.spec.errors import ModelRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class ExampleInput:
    """One tensor that a model is called with."""

    shape: tuple[int, ...]
    dtype: str  # as torch prints it without the prefix: float32, int64
    name: str | None = None  # of the argument; None: positional

    def zeros(self) -> torch.Tensor:
        """Return a tensor of this kind on the CPU."""
        return torch.zeros(self.shape, dtype=getattr(torch, self.dtype))


Example = tuple[ExampleInput, ...]  # either all positional, in order, or all by name


@dataclass(frozen=True, slots=True, kw_only=True)
class Arguments:
    """What a model is called with, as its forward or an example of its inputs tells."""

    keywords: tuple[str, ...] = ()  # given by name, so that batches have to be dicts; empty: positional
    parameters: tuple[str, ...] | None = None  # all that forward takes; batches are dicts of them or so many


ANY_POSITIONAL = Arguments()


def accepted(example: Example, forward: nn.Module) -> Example:
    """Return the inputs that a module takes: all positional ones, or those whose names its forward knows.

    Raises ModelRefused if a required argument of forward is not among the names, or if forward does not take
    as many positional ones.
    """
    name = type(forward).__name__
    if not keywords(example):
        _refuse_miscounted(example, forward, name)
        return example
    parameters = [
        p for p in inspect.signature(forward.forward).parameters.values() if p.kind is not p.VAR_POSITIONAL
    ]
    takes_all = any(p.kind is p.VAR_KEYWORD for p in parameters)
    known = [p.name for p in parameters if p.kind is not p.VAR_KEYWORD]
    given = tuple(i for i in example if i.name in known)
    seen = {i.name for i in example}
    missing = [
        p.name
        for p in parameters
        if p.default is p.empty and p.kind is not p.VAR_KEYWORD and p.name not in seen
    ]
    if missing or (not given and not takes_all):
        raise ModelRefused(
            f"{name}.forward wants {', '.join(missing or known) or 'positional arguments'}; "
            f"the batch is a dict with {_listed(seen)}: rename its keys, or pass inputs=... to train"
        )
    return given or example


def _refuse_miscounted(example: Example, forward: nn.Module, name: str) -> None:
    if forward._forward_pre_hooks or isinstance(forward, torch.jit.ScriptModule):
        return  # which may take others
    signature = inspect.signature(forward.forward)
    try:
        signature.bind(*example)
    except TypeError as err:
        raise ModelRefused(
            f"{name}.forward{signature} is not to be called with {len(example)} positional inputs, as the "
            f"batch gives: {err}; pass inputs=... to train, which returns those it takes"
        ) from err


def required(forward: nn.Module) -> tuple[str, ...] | None:
    """Return the parameters of a forward that are all required, None where some may be left out."""
    if forward._forward_pre_hooks or isinstance(forward, torch.jit.ScriptModule):
        return None
    parameters = inspect.signature(forward.forward).parameters.values()
    if any(p.kind is not p.POSITIONAL_OR_KEYWORD or p.default is not p.empty for p in parameters):
        return None
    return tuple(p.name for p in parameters)


def keywords(example: Sequence[ExampleInput]) -> tuple[str, ...]:
    """Return the argument names of an example; empty when its inputs are positional."""
    return tuple(i.name for i in example if i.name is not None)


def _listed(names: set[str | None]) -> str:
    return ", ".join(sorted(map(str, names)))
