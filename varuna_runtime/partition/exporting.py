"""Traces an unmodified model with torch.export, on fake tensors: no weights are made, nothing is computed."""

import copy
import logging
import types
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional
from torch.nn.modules.batchnorm import _NormBase
from torch.utils import _pytree as pytree

from varuna_runtime.partition.example import Example, keywords
from varuna_runtime.partition.naming import held_tensors
from varuna_runtime.partition.tripwire import Tripwire

ROOT = "model"  # the model's attribute name in what is exported


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """How a model's output is put together from the tensors a traced forward returns."""

    spec: Any  # torch's TreeSpec
    leaves: tuple[Any, ...]  # of the tree; TENSOR stands for the next tensor

    def __deepcopy__(self, memo: dict[int, Any]) -> "Output":
        return self

    def build(self, tensors: tuple[Tensor, ...]) -> Any:
        """Return the output as the model returns it; what was no tensor is as it was, or None."""
        given = iter(tensors)
        return pytree.tree_unflatten([next(given) if v is TENSOR else v for v in self.leaves], self.spec)


class _Tensor:
    def __deepcopy__(self, memo: dict[int, Any]) -> "_Tensor":
        return self


TENSOR = _Tensor()


@dataclass(frozen=True, slots=True, kw_only=True)
class Export:
    """A traced forward: its graph has the model's inputs as placeholders and tensors as get_attr nodes."""

    graph: fx.Graph  # node.meta["val"] is the fake value; "nn_module_stack" the modules it was called in
    attributes: Mapping[str, Any]  # what get_attr and call_module nodes name: meta tensors, modules
    output: Output
    conditions: tuple[Any, ...]  # on sizes that forward branched on, as sympy has them


class Untraceable(Exception):
    """A forward that no graph stands for; the text says why and where."""


def export(model: nn.Module, example: Example) -> Export:
    """Trace a model on the meta device with inputs like these; raises Untraceable.

    Sizes of the inputs are left open as far as the forward does; where what it makes of them is beyond the
    tracer (windows of padded images, say), all but the first of each input. The model itself is not changed.
    """
    try:
        return _export(model, example, open_dims=None)
    except _Entangled:
        return _export(model, example, open_dims=1)


def _export(model: nn.Module, example: Example, *, open_dims: int | None) -> Export:
    memo: dict[int, Any] = {}
    with _fake_mode() as mode:
        fakes = {id(t): _fake(t, mode) for t in held_tensors(model).values() if t.device.type == "meta"}
        memo.update(fakes)
        stand_in = copy.deepcopy(model, memo)
        for module in stand_in.modules():
            if isinstance(module, _NormBase):
                module.forward = types.MethodType(_normalised, module)
        entry = _Entry(stand_in, keywords(example))
        program = _exported(entry, stand_in, tuple(i.zeros() for i in example), open_dims)
    originals = {id(fakes[id(t)]): t for t in held_tensors(model).values() if id(t) in fakes}
    assert entry.output is not None
    graph, attributes = _unlifted(program, model, originals)
    conditions = {str(guard.expr): guard.expr for guard in mode.shape_env.guards}
    return Export(
        graph=graph,
        attributes=attributes,
        output=entry.output,
        conditions=tuple(conditions[text] for text in sorted(conditions)),
    )


class _Entangled(Exception):
    """Sizes that follow from the inputs' in too many steps."""


def _exported(entry: "_Entry", model: nn.Module, values: tuple[Tensor, ...], open_dims: int | None) -> Any:
    from torch.export import Dim

    shapes = tuple(dict.fromkeys(range(value.ndim)[:open_dims], Dim.AUTO) for value in values)
    tripwire = Tripwire(model)
    try:
        with tripwire, _quiet():
            program = torch.export.export(entry, (values,), dynamic_shapes=(shapes,), strict=False)
    except Exception as err:  # the user's forward runs on symbols here: whatever it raises, it is not traced
        cause = entry.error or err
        if isinstance(cause, _Entangled) and open_dims is None:
            raise cause from err
        raise Untraceable(tripwire.explained(cause)) from err
    if (reason := tripwire.tripped()) is not None:
        raise Untraceable(reason)
    return program


class _Seen:
    """What a call showed; an object of its own, because torch.export puts attributes of modules back."""

    output: Output | None = None
    error: Exception | None = None


class _Stopped(Exception):
    """Takes the place of a forward's error: torch.export prints the whole graph for some of them."""


class _Entry(nn.Module):
    """Calls the model with a flat tuple of inputs and returns the tensors of its output."""

    def __init__(self, model: nn.Module, names: tuple[str, ...]) -> None:
        super().__init__()
        self.add_module(ROOT, model)
        self._names = names
        self._seen = _Seen()

    @property
    def output(self) -> Output | None:
        return self._seen.output

    @property
    def error(self) -> Exception | None:
        """What the model raised."""
        return self._seen.error

    def forward(self, values: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        model = self.get_submodule(ROOT)
        try:
            result = model(**dict(zip(self._names, values, strict=True))) if self._names else model(*values)
        except Exception as err:
            self._seen.error = err
            raise _Stopped from err
        leaves, spec = pytree.tree_flatten(result)
        kept = tuple(
            TENSOR if isinstance(v, Tensor) else v if isinstance(v, int | float | str) else None
            for v in leaves
        )
        self._seen.output = Output(spec=spec, leaves=kept)
        return tuple(v for v in leaves if isinstance(v, Tensor))


@contextmanager
def _fake_mode() -> Iterator[Any]:
    """Give torch.export the mode that the model's tensors are fake in."""
    from torch._guards import TracingContext, tracing
    from torch._subclasses.fake_tensor import FakeTensorMode

    mode = FakeTensorMode(shape_env=_shapes(), allow_non_fake_inputs=True, export=True)
    with tracing(TracingContext(mode)):
        yield mode


_MAX_TERMS = 200  # of a size; convolutions and attention stay below 80, solving more takes minutes


def _shapes() -> Any:
    """Return what keeps account of sizes; it raises _Entangled where it would take too long."""
    from sympy import preorder_traversal
    from torch.fx.experimental.symbolic_shapes import ShapeEnv

    class Bounded(ShapeEnv):
        def evaluate_expr(self, orig_expr: Any, *args: Any, **options: Any) -> Any:
            if sum(1 for _ in islice(preorder_traversal(orig_expr), _MAX_TERMS + 1)) > _MAX_TERMS:
                raise _Entangled(f"a size of more than {_MAX_TERMS} terms")
            return super().evaluate_expr(orig_expr, *args, **options)

    return Bounded(tracked_fakes=[])


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep the tracer's remarks from the user: what matters of them becomes a reason."""
    loggers = [logging.getLogger(name) for name in ("torch.export", "torch._dynamo", "torch.fx")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


def _fake(tensor: Tensor, mode: Any) -> Tensor:
    with mode:
        fake = torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device="cpu")
    if isinstance(tensor, nn.Parameter):
        fake = nn.Parameter(fake, requires_grad=tensor.requires_grad)
        vars(fake).update(vars(tensor))
    return fake


def _normalised(self: Any, value: Tensor) -> Tensor:
    """Stand for the forward of a normalisation layer: one operation, which is put back as its module."""
    norm: Callable[..., Tensor] = functional.instance_norm
    uses_batch = self.training or self.running_mean is None
    if isinstance(self, nn.modules.batchnorm._BatchNorm):
        norm = functional.batch_norm
    mean, var = (None, None) if uses_batch else (self.running_mean, self.running_var)
    return norm(value, mean, var, self.weight, self.bias, uses_batch, 0.0, self.eps)


_NORMS = (torch.ops.aten.batch_norm.default, torch.ops.aten.instance_norm.default)


def _unlifted(
    program: Any, model: nn.Module, originals: Mapping[int, Tensor]
) -> tuple[fx.Graph, dict[str, Any]]:
    """Turn an exported program's lifted tensors back into attributes of the user's model."""
    graph: fx.Graph = program.graph
    targets = {spec.arg.name: spec.target for spec in program.graph_signature.input_specs if spec.target}
    attributes: dict[str, Any] = {}
    held = dict(model.named_parameters(remove_duplicate=False))
    held |= dict(model.named_buffers(remove_duplicate=False))  # type: ignore[arg-type]
    first_names = {id(tensor): name for name, tensor in reversed(held.items())}
    for node in list(graph.nodes):
        if node.op == "placeholder" and node.name in targets:
            target = targets[node.name]
            name = target.removeprefix(f"{ROOT}.")
            tensor = held[name] if name in held else _constant(program.constants[target], name, originals)
            _replace_by_attribute(node, first_names.get(id(tensor), name), tensor, attributes)
        elif node.op == "get_attr":
            attributes[str(node.target)] = getattr(program.graph_module, str(node.target))
        elif node.target in _NORMS:
            _put_back_module(node, model, attributes)
    return graph, attributes


def _constant(value: Tensor, name: str, originals: Mapping[int, Tensor]) -> Tensor:
    tensor = originals.get(id(value), value)
    if type(tensor).__name__ == "FakeTensor":
        raise Untraceable(f"forward makes a constant ({name}) of values that do not exist yet")
    return tensor


def _replace_by_attribute(node: fx.Node, name: str, tensor: Tensor, attributes: dict[str, Any]) -> None:
    with node.graph.inserting_before(node):
        made = node.graph.create_node("get_attr", name)
    made.meta["val"] = node.meta.get("val")
    attributes[name] = tensor
    node.replace_all_uses_with(made)
    node.graph.erase_node(node)


def innermost(node: fx.Node) -> str:
    """Return the name, in the model, of the innermost module that a node was traced in."""
    stack = list(node.meta.get("nn_module_stack", {}).values())
    return str(stack[-1][0]).removeprefix(ROOT).removeprefix(".") if stack else ""


def _put_back_module(node: fx.Node, model: nn.Module, attributes: dict[str, Any]) -> None:
    """Replace a normalisation operation by its module, which keeps the statistics."""
    name = innermost(node)
    module = model.get_submodule(name) if name else model
    if not isinstance(module, _NormBase):
        return
    with node.graph.inserting_before(node):
        call = node.graph.create_node("call_module", name, (node.args[0],))
    call.meta.update(node.meta)
    node.replace_all_uses_with(call)
    node.graph.erase_node(node)
    attributes[name] = module
