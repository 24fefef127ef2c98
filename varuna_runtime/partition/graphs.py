"""What can be told of the nodes of a traced graph, and tidying it for use as a module."""

import operator
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch._ops import HigherOrderOperator, OpOverload
from torch.utils import _pytree as pytree

from varuna_runtime.partition.checks import Dimension

_aten = torch.ops.aten
_TRACED_ON_CPU = "varuna_traced_on_cpu"
_SIZES = (torch.SymInt, torch.SymFloat, torch.SymBool)
_CHECKS = ("_assert_tensor_metadata", "_assert_scalar", "_assert_async", "sym_constrain_range")
_SWITCHES: dict[Any, int] = {  # operation -> position of the argument that says "in training"
    _aten.dropout.default: 2,
    _aten.feature_dropout.default: 2,
    _aten.alpha_dropout.default: 2,
    _aten.feature_alpha_dropout.default: 2,
    _aten.rrelu.default: 3,
    _aten.rrelu_.default: 3,
    _aten.dropout_.default: 2,
}
_RATES: dict[Any, int] = {
    _aten.scaled_dot_product_attention.default: 4
}  # position of a rate that is 0 outside training
_OUT_OF_PLACE: dict[Any, Any] = {
    _aten.add_.Tensor: _aten.add.Tensor,
    _aten.add_.Scalar: _aten.add.Scalar,
    _aten.sub_.Tensor: _aten.sub.Tensor,
    _aten.sub_.Scalar: _aten.sub.Scalar,
    _aten.mul_.Tensor: _aten.mul.Tensor,
    _aten.mul_.Scalar: _aten.mul.Scalar,
    _aten.div_.Tensor: _aten.div.Tensor,
    _aten.div_.Scalar: _aten.div.Scalar,
}


class Region(nn.Module):
    """Part of a forward that ran under another gradient mode or autocast than the rest."""

    def __init__(self, body: fx.GraphModule, kind: str, settings: tuple[Any, ...]) -> None:
        super().__init__()
        self.body = body
        self.edits = any(written(node, {}) for node in body.graph.nodes)  # something in place
        self.draws = any(map(is_random, body.graph.nodes))
        self.draws_always = any(draws_always(node, {}) for node in body.graph.nodes)
        self._kind = kind
        self._settings = settings

    def forward(self, *values: Any) -> Any:
        """Run the part as the user's forward did."""
        if self._kind == "grad":
            with torch.set_grad_enabled(*self._settings):
                return self.body(*values)
        device_type, dtype, enabled, cache_enabled = self._settings
        with torch.autocast(device_type, dtype, enabled, cache_enabled):
            return self.body(*values)


_REGIONS = {"wrap_with_set_grad_enabled": ("grad", 1), "wrap_with_autocast": ("autocast", 4)}


def tidy(graph: fx.Graph, attributes: dict[str, Any]) -> None:
    """Drop the tracer's checks and dead nodes; make modules of regions; have dropout follow `training`."""
    for node in list(graph.nodes):
        if node.op != "call_function":
            continue
        if getattr(node.target, "__name__", "").split(".")[0] in _CHECKS:
            graph.erase_node(node)
        elif isinstance(node.target, HigherOrderOperator):
            _make_region(node, attributes)
        elif node.target is _aten.detach_.default:
            node.target = _aten.detach.default
        elif node.target in _SWITCHES or node.target in _RATES:
            _follow_training(node)
    _drop_dead(graph, attributes)
    _edit_out_of_place(graph)


def _make_region(node: fx.Node, attributes: dict[str, Any]) -> None:
    kind, num_settings = _REGIONS.get(str(node.target), ("", 0))
    if not kind:
        return
    body_node = node.args[num_settings]
    assert isinstance(body_node, fx.Node)
    body = attributes[str(body_node.target)]
    tidy(body.graph, {name: getattr(body, name, None) for name in _targets(body.graph)})
    for inner in body.graph.nodes:
        inner.meta = {"val": inner.meta.get("val")} if inner.op == "placeholder" else {}
    mark_traced(body).recompile()
    name = f"varuna_{body_node.target}"
    attributes[name] = Region(body, kind, tuple(node.args[:num_settings]))
    with node.graph.inserting_before(node):
        call = node.graph.create_node("call_module", name, tuple(node.args[num_settings + 1 :]))
    call.meta.update(node.meta)
    node.replace_all_uses_with(call)
    node.graph.erase_node(node)


def move_to(module: nn.Module, device: torch.device) -> None:
    """Have traced graphs make their tensors on `device` where the trace has the CPU, in place."""
    for part in module.modules():
        if isinstance(part, fx.GraphModule) and part.meta.get(_TRACED_ON_CPU):
            for node in part.graph.nodes:
                node.args, node.kwargs = (
                    pytree.tree_map_only(torch.device, lambda _: device, tuple(node.args)),
                    pytree.tree_map_only(torch.device, lambda _: device, dict(node.kwargs)),
                )
            part.recompile()


def mark_traced(part: fx.GraphModule) -> fx.GraphModule:
    """Mark a graph whose devices `move_to` may change."""
    part.meta[_TRACED_ON_CPU] = True
    return part


def _targets(graph: fx.Graph) -> set[str]:
    return {str(n.target) for n in graph.nodes if n.op == "get_attr" and "." not in str(n.target)}


def _follow_training(node: fx.Node) -> None:
    """Make a random operation do in evaluation what its module would."""
    position = _SWITCHES.get(node.target, _RATES.get(node.target, 0))
    if position >= len(node.args) or not node.args[position]:
        return  # off in training as well
    with node.graph.inserting_before(node):
        training = node.graph.create_node("get_attr", "training")
        value: fx.Node = training
        if node.target in _RATES:
            value = node.graph.call_function(operator.mul, (node.args[position], training))
            value.meta.update({key: v for key, v in node.meta.items() if key != "val"})
    node.args = (*node.args[:position], value, *node.args[position + 1 :])


def _drop_dead(graph: fx.Graph, attributes: dict[str, Any]) -> None:
    for node in reversed(list(graph.nodes)):
        is_kept = node.op in ("placeholder", "output") or node.users
        if not is_kept and not is_random(node) and not written(node, attributes):
            graph.erase_node(node)


def _edit_out_of_place(graph: fx.Graph) -> None:
    """Write x = x + y for x += y where that is the same, so that an edit keeps nothing together."""
    order = {node: place for place, node in enumerate(graph.nodes)}
    groups = aliases(graph)
    for node in list(graph.nodes):
        other = _OUT_OF_PLACE.get(node.target)
        if other is None:
            continue
        edited = node.args[0]
        assert isinstance(edited, fx.Node)
        if not isinstance(edited.meta.get("val"), Tensor) or edited.op in ("placeholder", "get_attr"):
            continue
        values = [a.meta.get("val") for a in node.all_input_nodes]
        later = {
            alias
            for alias in groups[node]
            if alias not in (edited, node) and any(order[user] > order[node] for user in alias.users)
        }
        same_type = all(not isinstance(v, Tensor) or v.dtype == edited.meta["val"].dtype for v in values)
        if later - _after(groups[node], order, node) or not same_type:
            continue
        node.target = other
        for user in [user for user in edited.users if order[user] > order[node]]:
            user.replace_input_with(edited, node)


def _after(group: set[fx.Node], order: dict[fx.Node, int], node: fx.Node) -> set[fx.Node]:
    return {alias for alias in group if order[alias] > order[node]}


def aliases(graph: fx.Graph) -> dict[fx.Node, set[fx.Node]]:
    """Return for each node all nodes that may share its memory, itself included."""
    group: dict[fx.Node, set[fx.Node]] = {}
    for node in graph.nodes:
        joined = {node}
        for source in _aliased_inputs(node):
            joined |= group[source]
        for member in joined:
            group[member] = joined
    return group


def _aliased_inputs(node: fx.Node) -> Iterator[fx.Node]:
    if node.op == "call_function" and node.target is operator.getitem:
        yield from node.all_input_nodes
    elif node.op == "call_module":
        yield from (n for n in node.all_input_nodes if not is_size(n))
    elif node.op == "call_function" and isinstance(node.target, OpOverload):
        returned = {
            name for r in node.target._schema.returns if r.alias_info for name in r.alias_info.before_set
        }
        for position, argument in enumerate(node.target._schema.arguments):
            info = argument.alias_info
            if info is not None and returned & set(info.before_set):
                value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
                yield from fx_nodes(value)


def written(node: fx.Node, attributes: Mapping[str, Any]) -> list[fx.Node]:
    """Return the nodes whose memory a node changes."""
    if node.op == "call_module":
        module = attributes.get(str(node.target))
        return node.all_input_nodes if isinstance(module, Region) and module.edits else []
    if node.op != "call_function" or not isinstance(node.target, OpOverload):
        return []
    found: list[fx.Node] = []
    for position, argument in enumerate(node.target._schema.arguments):
        if argument.alias_info is not None and argument.alias_info.is_write:
            value = node.args[position] if position < len(node.args) else node.kwargs.get(argument.name)
            found.extend(fx_nodes(value))
    return found


def fx_nodes(value: Any) -> list[fx.Node]:
    """Return the nodes in an argument."""
    found: list[fx.Node] = []
    fx.map_arg(value, lambda node: found.append(node) or node)  # type: ignore[func-returns-value]
    return found


def is_random(node: fx.Node) -> bool:
    """True if a node draws random numbers."""
    if node.target in _RATES:
        return bool(node.args[_RATES[node.target] :])
    return isinstance(node.target, OpOverload) and torch.Tag.nondeterministic_seeded in node.target.tags


def draws_always(node: fx.Node, attributes: Mapping[str, Any]) -> bool:
    """True if a node draws random numbers in evaluation as well, where its module might not."""
    region = attributes.get(str(node.target)) if node.op == "call_module" else None
    if isinstance(region, Region):
        return region.draws_always
    return is_random(node) and node.target not in _SWITCHES and node.target not in _RATES


def is_size(node: fx.Node) -> bool:
    """True if the value of a node is a number that follows from sizes."""
    return isinstance(node.meta.get("val"), _SIZES)


def num_bytes(node: fx.Node) -> int:
    """Return the bytes of a node's value for the example inputs; 0 for what is no tensor."""
    values = node.meta.get("val")
    found = values if isinstance(values, list | tuple) else (values,)
    return sum(_num_bytes(v) for v in found if isinstance(v, Tensor))


def _num_bytes(value: Tensor) -> int:
    count = 1
    for size in value.shape:
        count *= size if isinstance(size, int) else _hint(size)
    return count * value.element_size()


def _hint(size: Any) -> int:
    hint = size.node.hint if size.node.has_hint() else None
    return 1 if hint is None else int(hint)


def dimension(size: Any, where: str) -> Dimension:
    """Return what a traced input's size says of it."""
    if isinstance(size, int):
        return Dimension(where=where, fixed=size, symbol=None)
    now, original = size.node.expr, size.node._expr
    return Dimension(
        where=where,
        fixed=int(now) if now.is_number else None,
        symbol=original if original.is_symbol else None,
    )


def size_text(size: Any) -> str:
    """Return a size as text: digits, or the expression of the sizes it follows from."""
    return str(size) if isinstance(size, int | float | bool) else str(size.node.expr)
