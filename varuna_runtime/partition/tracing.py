"""Cutting any forward at its CutPoints: traced symbolically, split into one graph per segment.

Only modules that contain a mark are looked into; all others stay whole, whatever Python they run.
"""

import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.utils._python_dispatch import TorchDispatchMode

from varuna_runtime.partition.cutpoint import CutPoint
from varuna_runtime.partition.splitting import Cuts, crossings, parts
from varuna_runtime.spec.errors import ModelRefused

_PLAIN_ATTRIBUTES = {"shape", "dtype", "device", "ndim", "layout", "requires_grad", "is_cuda"}
_PLAIN_METHODS = {"size", "dim", "ndimension", "numel", "nelement", "stride", "item", "tolist", "get_device"}
_ADVICE = (
    "move Python that depends on values into a submodule without marks, which is not looked into, "
    "or give the model as an nn.Sequential"
)


def traced_parts(model: nn.Module, names: tuple[str, ...] = ()) -> tuple[nn.Module, ...]:
    """Return one module per part between marks, in order; names inside are those of `model`.

    With `names` the first part takes these arguments of forward, in this order, else those without default.
    """
    cuts = _without_marks(_trace(model, names), model)
    handed = crossings(cuts)
    for part, nodes in enumerate(handed):
        _refuse_plain(part, nodes)
    made = parts(cuts, model, handed)
    _refuse_unused(model, made)
    return made


class _Tracer(fx.Tracer):
    proxy_buffer_attributes = True

    def __init__(self, names: tuple[str, ...]) -> None:
        super().__init__()
        self._names = names

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return isinstance(m, CutPoint) or not _is_marked(m)

    def create_args_for_root(
        self, root_fn: Callable[..., Any], is_module: bool, concrete_args: Any = None
    ) -> tuple[Callable[..., Any], list[Any]]:
        """Make inputs of the named arguments, or of those without default; the others keep theirs."""
        args: list[Any] = [self.root]
        made: dict[str, Any] = {name: self.create_proxy("placeholder", name, (), {}) for name in self._names}
        for name, parameter in list(inspect.signature(root_fn).parameters.items())[1:]:
            if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                continue
            if name in made:
                args.append(made[name])
            elif parameter.default is parameter.empty:
                args.append(self.create_proxy("placeholder", name, (), {}))
            elif made:
                args.append(parameter.default)
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


def _trace(model: nn.Module, names: tuple[str, ...]) -> fx.Graph:
    name = type(model).__name__
    _register_plain_tensors(model)
    try:
        with _NoRandomConstants():  # type: ignore[no-untyped-call]
            return _Tracer(names).trace(model)
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


def _without_marks(graph: fx.Graph, model: nn.Module) -> Cuts:
    part_of: dict[fx.Node, int] = {}
    values: list[fx.Node] = []  # what each mark was put on
    for node in list(graph.nodes):
        if node.op != "call_module" or not isinstance(model.get_submodule(str(node.target)), CutPoint):
            part_of[node] = len(values)
            continue
        value = next(iter(node.all_input_nodes), None)
        if value is None:
            raise ModelRefused(f"CutPoint {node.target!r} is not put on a value of this forward")
        node.replace_all_uses_with(value)
        graph.erase_node(node)
        values.append(value)
    return Cuts(graph=graph, part_of=part_of, first=values)


def _refuse_plain(part: int, crossing: tuple[fx.Node, ...]) -> None:
    if not crossing:
        raise ModelRefused(f"nothing computed before CutPoint {part} is used after it; remove that CutPoint")
    for node in crossing:
        if _is_plain(node):
            raise ModelRefused(
                f"value {node.name!r} ({node.format_node()}) crosses CutPoint {part} but is not a tensor; "
                "compute it again after the cut from a tensor that is there"
            )


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


def _refuse_unused(model: nn.Module, made: tuple[nn.Module, ...]) -> None:
    used = {id(tensor) for part in made for tensor in (*part.parameters(), *part.buffers())}
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if id(tensor) not in used:
            raise ModelRefused(f"{name!r} is never used by {type(model).__name__}.forward; remove it")
