"""Cutting any forward at its CutPoints: traced symbolically, split into one graph per segment.

Only modules that contain a mark are looked into; all others stay whole, whatever Python they run.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from varuna_runtime.partition.cutpoint import CutPoint, carried
from varuna_runtime.spec.errors import ModelRefused

_PLAIN_ATTRIBUTES = {"shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda"}
_PLAIN_METHODS = {"size", "dim", "ndimension", "numel", "nelement", "stride", "item", "tolist", "get_device"}
_ADVICE = (
    "move Python that depends on values into a submodule without marks, which is not looked into, "
    "or give the model as an nn.Sequential"
)


def traced_parts(model: nn.Module) -> tuple[nn.Module, ...]:
    """Return one module per part between marks, in order; names inside are those of `model`."""
    marked = _without_marks(_trace(model), model)
    crossings = [_crossing(marked, part) for part in range(marked.num_parts - 1)]
    parts = tuple(
        fx.GraphModule(model, _part_graph(marked, part, crossings), class_name=f"Part{part}")
        for part in range(marked.num_parts)
    )
    _refuse_unused(model, parts)
    return parts


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marked:
    """A traced forward without its marks, which are now numbers: the part each node belongs to."""

    graph: fx.Graph
    part_of: dict[fx.Node, int]
    values: list[fx.Node]  # what the mark after each part was put on

    @property
    def num_parts(self) -> int:
        return len(self.values) + 1


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, CutPoint) or not _is_marked(m)

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Make inputs of the positional arguments without default; the others keep their default."""
        args: list[Any] = [self.root]
        for name, parameter in list(inspect.signature(root_fn).parameters.items())[1:]:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if parameter.default is parameter.empty:
                args.append(self.create_proxy("placeholder", name, (), {}))
        return root_fn, args


class _NoRandomConstants(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Refuses numbers drawn while tracing, which would stay the same for the whole training."""

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        return False  # see construction: keeps the compiler from being imported

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.Tag.nondeterministic_seeded in func.tags:
            raise ModelRefused(f"forward draws random numbers ({func}) outside any unmarked submodule")
        return func(*args, **(kwargs or {}))


def _trace(model: nn.Module) -> fx.Graph:
    name = type(model).__name__
    _register_plain_tensors(model)
    try:
        with _NoRandomConstants():  # type: ignore[no-untyped-call]
            return _Tracer().trace(model)
    except ModelRefused as err:
        raise ModelRefused(f"{name}: {err}; move them into one") from err
    except (
        Exception
    ) as err:  # the user's forward runs on symbols here: whatever it raises, it cannot be traced
        raise ModelRefused(f"{name}.forward cannot be cut at its CutPoints: {err}; {_ADVICE}") from err


def _register_plain_tensors(model: nn.Module) -> None:
    """Make buffers of tensors kept in plain attributes, so that the tracer sees their uses as symbols."""
    for module in filter(_is_marked, model.modules()):
        for name, value in list(vars(module).items()):
            if isinstance(value, Tensor):
                delattr(module, name)
                module.register_buffer(name, value, persistent=False)


def _is_marked(module: nn.Module) -> bool:
    return any(isinstance(inner, CutPoint) for inner in module.modules())


def _without_marks(graph: fx.Graph, model: nn.Module) -> _Marked:
    marked = _Marked(graph=graph, part_of={}, values=[])
    for node in list(graph.nodes):
        if node.op != "call_module" or not isinstance(model.get_submodule(str(node.target)), CutPoint):
            marked.part_of[node] = len(marked.values)
            continue
        value = next(iter(node.all_input_nodes), None)
        if value is None:
            raise ModelRefused(f"CutPoint {node.target!r} is not put on a value of this forward")
        node.replace_all_uses_with(value)
        graph.erase_node(node)
        marked.values.append(value)
    return marked


def _crossing(marked: _Marked, part: int) -> tuple[fx.Node, ...]:
    """Return what later parts need from `part` and before: the marked value, then in order of making."""
    live = [
        node
        for node, made_in in marked.part_of.items()
        if made_in <= part
        and node.op != "get_attr"
        and any(marked.part_of[user] > part for user in node.users)
    ]
    if not live:
        raise ModelRefused(f"nothing computed before CutPoint {part} is used after it; remove that CutPoint")
    for node in live:
        if _is_plain(node):
            raise ModelRefused(
                f"value {node.name!r} ({node.format_node()}) crosses CutPoint {part} but is not a tensor; "
                "compute it again after the cut from a tensor that is there"
            )
    return tuple(sorted(live, key=lambda node: node is not marked.values[part]))


def _part_graph(marked: _Marked, part: int, crossings: list[tuple[fx.Node, ...]]) -> fx.Graph:
    graph = fx.Graph()
    incoming = crossings[part - 1] if part else ()
    copies = {node: graph.placeholder(node.name) for node in incoming}

    def here(node: fx.Node) -> fx.Node:
        if node not in copies:  # a parameter or buffer: every part that uses it has its own
            copies[node] = graph.node_copy(node)
        return copies[node]

    for node, made_in in marked.part_of.items():
        if made_in == part and node.op not in ("get_attr", "output"):
            copies[node] = graph.node_copy(node, here)
    if part < len(crossings):
        values = tuple(here(node) for node in crossings[part])
        names = tuple(node.name for node in crossings[part])
        graph.output(graph.call_function(carried, (values, names)))
    else:
        output = next(iter(reversed(marked.graph.nodes)))
        graph.output(fx.map_arg(output.args[0], here))
    return graph


def _is_plain(node: fx.Node) -> bool:
    """True if a value is certainly no tensor: sizes, types and what is computed from them alone."""
    if node.op == "call_method":
        return node.target in _PLAIN_METHODS
    if node.op != "call_function":
        return False
    if node.target is getattr:
        return node.args[1] in _PLAIN_ATTRIBUTES
    is_arithmetic = getattr(node.target, "__module__", "") in ("_operator", "builtins", "math")
    return is_arithmetic and bool(node.all_input_nodes) and all(map(_is_plain, node.all_input_nodes))


def _refuse_unused(model: nn.Module, parts: tuple[nn.Module, ...]) -> None:
    used = {id(tensor) for part in parts for tensor in (*part.parameters(), *part.buffers())}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if id(tensor) not in used:
            raise ModelRefused(f"{name!r} is never used by {type(model).__name__}.forward; remove it")
