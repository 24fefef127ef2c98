"""A model's segments: children of a sequence, or the parts of a traced forward between its marks."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from varuna_runtime.partition.cutpoint import CutPoint, carried
from varuna_runtime.partition.tracing import traced_parts
from varuna_runtime.spec.errors import ModelRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Segment:
    """A named part of the model; its parameters keep their names of the whole model."""

    name: str
    module: nn.Module


def whole(built: nn.Module | Sequence[nn.Module]) -> nn.Module:
    """Return the model a factory built as one module; a list of modules becomes a sequence."""
    if isinstance(built, nn.Module) and not isinstance(built, nn.ModuleList):
        return built
    if not isinstance(built, list | tuple | nn.ModuleList):
        raise ModelRefused(f"model: seen {type(built).__name__}, wanted an nn.Module or a list of nn.Modules")
    for index, child in enumerate(built):
        if not isinstance(child, nn.Module):
            raise ModelRefused(f"model[{index}]: seen {type(child).__name__}, wanted an nn.Module")
    return nn.Sequential(*built)


def segments_of(model: nn.Module) -> tuple[Segment, ...]:
    """Return the model's segments, a pure function of its structure."""
    marks = [name for name, module in model.named_modules() if isinstance(module, CutPoint)]
    if _is_plain_sequence(model) and all("." not in name for name in marks):
        return _children(model, is_marked=bool(marks))
    if marks:
        return _traced(model)
    return (Segment(name=type(model).__name__, module=model),)


def _is_plain_sequence(model: nn.Module) -> bool:
    has_hooks = bool(model._forward_hooks or model._forward_pre_hooks)
    return isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward and not has_hooks


def _children(model: nn.Module, *, is_marked: bool) -> tuple[Segment, ...]:
    groups: list[dict[str, nn.Module]] = [{}]
    for name, child in model._modules.items():
        if child is None:
            continue
        if isinstance(child, CutPoint):
            groups.append({})
            continue
        if groups[-1] and not is_marked:
            groups.append({})
        groups[-1][name] = child
    groups = [group for group in groups if group]
    if not groups:
        raise ModelRefused("model: a sequence without modules; give it at least one")
    last = len(groups) - 1
    return tuple(
        Segment(name=_span(tuple(group)), module=Chain(group, is_last=index == last))
        for index, group in enumerate(groups)
    )


def _span(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"


def _traced(model: nn.Module) -> tuple[Segment, ...]:
    parts = traced_parts(model)
    return tuple(Segment(name=f"part{index}", module=part) for index, part in enumerate(parts))


class Chain(nn.Module):
    """Modules of a sequence in order, under their names there.

    Each receives positionally what the one before returned.
    """

    def __init__(self, modules: Mapping[str, nn.Module], *, is_last: bool) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self._is_last = is_last

    def forward(self, *values: Any) -> Any:
        """Return the last module's output; across a cut it must be a tensor or a tuple of tensors."""
        result: Any = values
        for module in self._modules.values():  # not children(): that skips a module used twice
            assert module is not None
            result = module(*result) if isinstance(result, tuple) else module(result)
        if self._is_last:
            return result
        results = result if isinstance(result, tuple) else (result,)
        return carried(
            results, tuple(f"output {n} of {next(reversed(self._modules))}" for n in range(len(results)))
        )
