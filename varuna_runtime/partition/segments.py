"""A model's segments: children of a sequence, parts between marks, or parts of a whole traced forward."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from varuna_runtime.partition.cutpoint import CutPoint, carried
from varuna_runtime.partition.example import ANY_POSITIONAL, Arguments, Example, accepted, keywords, required
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """A model's segments, a pure function of its structure and of the kind of its inputs."""

    segments: tuple[Segment, ...]
    arguments: Arguments = ANY_POSITIONAL  # what the first one takes
    is_traced: bool = False  # as a whole, on the CPU
    warning: str = ""  # why a model without marks could not be cut


def segments_of(model: nn.Module, example: Callable[[], Example] | None) -> Segments:
    """Return the model's segments; without an example of its inputs only marks and sequences are cut.

    These look at the example only where the signature of forward leaves open what it is called with.
    """
    marks = [name for name, module in model.named_modules() if isinstance(module, CutPoint)]
    if _is_plain_sequence(model) and all("." not in name for name in marks):
        arguments = _arguments(next(iter(model), model), example)  # type: ignore[call-overload]
        return Segments(
            segments=_children(model, arguments.keywords, is_marked=bool(marks)), arguments=arguments
        )
    if marks:
        arguments = _arguments(model, example)
        return Segments(segments=_traced(model, arguments.keywords), arguments=arguments)
    if example is None:
        return Segments(segments=_uncut(model, ()))
    inputs = accepted(example(), model)
    return _automatic(model, inputs, keywords(inputs))


def _arguments(taker: nn.Module, example: Callable[[], Example] | None) -> Arguments:
    names = required(taker)
    if names is not None:
        return Arguments(parameters=names)
    return Arguments(keywords=keywords(accepted(example(), taker))) if example else ANY_POSITIONAL


def _automatic(model: nn.Module, example: Example, names: tuple[str, ...]) -> Segments:
    # Imported late: the tracer takes seconds to import, and explicit models do without.
    from varuna_runtime.partition.automatic import automatic_parts
    from varuna_runtime.partition.exporting import Untraceable

    try:
        made = automatic_parts(model, example)
    except Untraceable as err:
        warning = (
            f"the model cannot be cut automatically and trains as one segment, without a pipeline: {err}. "
            "Give it as an nn.Sequential or with CutPoints to cut it"
        )
        return Segments(segments=_uncut(model, names), arguments=Arguments(keywords=names), warning=warning)
    found = tuple(Segment(name=name or type(model).__name__, module=part) for name, part in made)
    return Segments(segments=found, arguments=Arguments(keywords=names), is_traced=True)


def _uncut(model: nn.Module, names: tuple[str, ...]) -> tuple[Segment, ...]:
    if names:
        model.register_forward_pre_hook(_ByName(names), with_kwargs=True, prepend=True)
    return (Segment(name=type(model).__name__, module=model),)


class _ByName:
    """A hook that gives positional values to a module by name."""

    def __init__(self, names: tuple[str, ...]) -> None:
        self._names = names

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (), dict(zip(self._names, args, strict=True)) | kwargs


def _is_plain_sequence(model: nn.Module) -> bool:
    has_hooks = bool(model._forward_hooks or model._forward_pre_hooks)
    return isinstance(model, nn.Sequential) and type(model).forward is nn.Sequential.forward and not has_hooks


def _children(model: nn.Module, names: tuple[str, ...], *, is_marked: bool) -> tuple[Segment, ...]:
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
        Segment(
            name=_span(tuple(group)),
            module=Chain(group, is_last=index == last, names=() if index else names),
        )
        for index, group in enumerate(groups)
    )


def _span(names: tuple[str, ...]) -> str:
    return names[0] if len(names) == 1 else f"{names[0]}..{names[-1]}"


def _traced(model: nn.Module, names: tuple[str, ...]) -> tuple[Segment, ...]:
    parts = traced_parts(model, names)
    return tuple(Segment(name=f"part{index}", module=part) for index, part in enumerate(parts))


class Chain(nn.Module):
    """Modules of a sequence in order, under their names there.

    Each receives positionally what the one before returned; with `names` the first receives these.
    """

    def __init__(self, modules: Mapping[str, nn.Module], *, is_last: bool, names: tuple[str, ...]) -> None:
        super().__init__()
        for name, module in modules.items():
            self.add_module(name, module)
        self._is_last = is_last
        self._names = names

    def forward(self, *values: Any) -> Any:
        """Return the last module's output; across a cut it must be a tensor or a tuple of tensors."""
        result: Any = values
        for place, module in enumerate(self._modules.values()):  # not children(): one may be used twice
            assert module is not None
            if self._names and not place:
                result = module(**dict(zip(self._names, values, strict=True)))
                continue
            result = module(*result) if isinstance(result, tuple) else module(result)
        if self._is_last:
            return result
        results = result if isinstance(result, tuple) else (result,)
        return carried(
            results, tuple(f"output {n} of {next(reversed(self._modules))}" for n in range(len(results)))
        )
