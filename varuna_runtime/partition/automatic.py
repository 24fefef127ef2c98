"""Segments of an unmodified module: traced as a whole, cut between its blocks, one graph per segment."""

from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from itertools import accumulate
from typing import Any

from torch import Tensor, fx, nn

from varuna_runtime.partition import blocks
from varuna_runtime.partition.checks import InputChecks, OnlyTraining
from varuna_runtime.partition.example import Example
from varuna_runtime.partition.exporting import Export, Output, Untraceable, export
from varuna_runtime.partition.graphs import (
    Region,
    aliases,
    dimension,
    draws_always,
    is_random,
    is_size,
    mark_traced,
    num_bytes,
    size_text,
    tidy,
    written,
)
from varuna_runtime.partition.splitting import Cuts, Sizes, crossings, parts

_OUTPUT = "varuna_output"
_CHECKS = "varuna_checks"
_STANDING = ("placeholder", "get_attr", "output")


def automatic_parts(model: nn.Module, example: Example) -> tuple[tuple[str, nn.Module], ...]:
    """Return name and module of each segment of a model on the meta device called with inputs like these.

    Raises Untraceable with the reason if no graph stands for the whole forward.
    """
    traced = export(model, example)
    graph, attributes = traced.graph, dict(traced.attributes)
    tidy(graph, attributes)
    _build_output(graph, traced.output, attributes)
    _check_inputs(traced, example, attributes)
    _refuse_draws_in_evaluation(graph, attributes)
    plan = _Plan(graph, attributes)
    chosen = plan.cuts()
    cuts = plan.split(chosen)
    _keep_unused(model, cuts, attributes)
    made = parts(cuts, attributes, crossings(cuts))
    return tuple((cut.name, mark_traced(part)) for cut, part in zip(chosen, made, strict=True))


class _Built(nn.Module):
    """Puts the model's output together."""

    def __init__(self, output: Output) -> None:
        super().__init__()
        self._output = output

    def forward(self, *tensors: Tensor) -> Any:
        return self._output.build(tensors)


def _build_output(graph: fx.Graph, output: Output, attributes: dict[str, Any]) -> None:
    end = next(iter(reversed(graph.nodes)))
    attributes["training"] = True
    attributes[_OUTPUT] = _Built(output)
    with graph.inserting_before(end):
        built = graph.create_node("call_module", _OUTPUT, tuple(end.args[0]))
    end.args = (built,)


def _check_inputs(traced: Export, example: Example, attributes: dict[str, Any]) -> None:
    """Have the first part refuse sizes that the traced forward is not for."""
    inputs = [node for node in traced.graph.nodes if node.op == "placeholder"]
    dimensions = [
        [dimension(size, f"{i.name or f'input {place}'} dimension {dim}") for dim, size in enumerate(shape)]
        for place, (i, shape) in enumerate(zip(example, (n.meta["val"].shape for n in inputs), strict=True))
    ]
    attributes[_CHECKS] = InputChecks(dimensions, traced.conditions)
    after = inputs[-1].next if inputs else next(iter(traced.graph.nodes))
    with traced.graph.inserting_before(after):
        traced.graph.create_node("call_module", _CHECKS, tuple(inputs))


def _refuse_draws_in_evaluation(graph: fx.Graph, attributes: dict[str, Any]) -> None:
    for node in list(graph.nodes):
        if draws_always(node, attributes):
            name = f"varuna_training_{node.name}"
            attributes[name] = OnlyTraining(_where(node))
            with graph.inserting_before(node):
                graph.create_node("call_module", name).meta.update({**node.meta, "val": None})


class _Plan:
    """Where to cut one traced graph, and what is computed again behind a cut."""

    def __init__(self, graph: fx.Graph, attributes: Mapping[str, Any]) -> None:
        self._graph, self._attributes = graph, attributes
        self._order = {node: place for place, node in enumerate(graph.nodes)}
        self._ops = [n for n in graph.nodes if n.op not in _STANDING and not is_size(n)]
        self._place = {node: place for place, node in enumerate(self._ops)}
        self._groups = aliases(graph)
        self._edited = self._edited_groups()
        self._support = self._supports()

    def cuts(self) -> tuple[blocks.Cut, ...]:
        """Return the first operation and the name of each segment."""
        return blocks.cuts([_path(node) for node in self._ops], self._weights(), self._live_bytes())

    def split(self, chosen: Sequence[blocks.Cut]) -> Cuts:
        """Return the parts, with as few bytes across the cuts as recomputing from inputs allows."""
        starts = [cut.start for cut in chosen]
        part_of: dict[fx.Node, int] = {}
        part = 0
        for node in self._graph.nodes:
            if node.op == "get_attr":
                continue
            place = self._place.get(node)
            if place is not None:
                part = sum(start <= place for start in starts) - 1
            part_of[node] = (
                0 if node.op == "placeholder" else len(starts) - 1 if node.op == "output" else part
            )
        best = self._cuts(part_of, len(starts), frozenset())
        by_support: dict[frozenset[fx.Node], set[fx.Node]] = {}
        for node, support in self._support.items():
            by_support.setdefault(support, set()).add(node)
        again = frozenset(by_support.pop(frozenset(), ()))
        best = self._cuts(part_of, len(starts), again)
        for support in sorted(by_support, key=lambda s: sorted(self._order[n] for n in s)):
            other = self._cuts(part_of, len(starts), best.again | by_support[support])
            if _crossing_bytes(other) < _crossing_bytes(best):
                best = other
        return best

    def _cuts(self, part_of: Mapping[fx.Node, int], num_parts: int, again: frozenset[fx.Node]) -> Cuts:
        tensors = {n: n.meta["val"] for n in self._graph.nodes if isinstance(n.meta.get("val"), Tensor)}
        return Cuts(
            graph=self._graph,
            part_of=part_of,
            first=(None,) * (num_parts - 1),
            again=again,
            sizes=Sizes(
                of={n: size_text(n.meta["val"]) for n in self._graph.nodes if is_size(n)},
                dims={n: tuple(map(size_text, value.shape)) for n, value in tensors.items()},
                inputs=tuple(n for n in self._graph.nodes if n.op == "placeholder"),
            ),
        )

    def _edited_groups(self) -> set[fx.Node]:
        """Return every node whose memory something changes; refuses changes of what outlives the forward."""
        edited: set[fx.Node] = set()
        for node in self._graph.nodes:
            for target in written(node, self._attributes):
                for alias in self._groups[target]:
                    if alias.op in ("placeholder", "get_attr"):
                        kind = "its input" if alias.op == "placeholder" else "the tensor"
                        raise Untraceable(f"{_where(node)} changes {kind} {alias.target!s} in place")
                edited |= self._groups[target]
        return edited

    def _supports(self) -> dict[fx.Node, frozenset[fx.Node]]:
        """Return what follows from inputs and constants alone, with the inputs whose values it needs."""
        found: dict[fx.Node, frozenset[fx.Node]] = {}
        for node in self._ops:
            if node in self._edited or is_random(node):
                continue
            if node.op == "call_module" and not self._is_pure_region(node):
                continue
            needed: set[fx.Node] = set()
            for source in node.all_input_nodes:
                if source.op == "placeholder":
                    needed.add(source)
                elif source in found:
                    needed |= found[source]
                elif not is_size(source) and not self._is_constant(source):
                    break
            else:
                found[node] = frozenset(needed)
        return found

    def _is_pure_region(self, node: fx.Node) -> bool:
        module = self._attributes[str(node.target)]
        return isinstance(module, Region) and not module.edits and not module.draws

    def _is_constant(self, node: fx.Node) -> bool:
        is_tensor = isinstance(self._attributes.get(str(node.target)), Tensor)
        return node.op == "get_attr" and is_tensor and not self._is_parameter(node)

    def _is_parameter(self, node: fx.Node) -> bool:
        return isinstance(self._attributes.get(str(node.target)), nn.Parameter)

    def _weights(self) -> blocks.Weights:
        """Return the shares of a run of operations: of parameter bytes, and of activation bytes."""
        owned = [self._parameters(node) for node in self._ops]
        sizes = {key: size for found in owned for key, size in found.items()}
        made = [0 if n in self._support else num_bytes(n) for n in self._ops]
        upto = [0, *accumulate(made)]
        all_owned, all_made = max(1, sum(sizes.values())), max(1, upto[-1])

        @cache
        def weights(start: int, stop: int) -> blocks.Shares:
            keys = {key for found in owned[start:stop] for key in found}
            return sum(sizes[k] for k in keys) / all_owned, (upto[stop] - upto[start]) / all_made

        return weights

    def _parameters(self, node: fx.Node) -> dict[int, int]:
        tensors: Iterable[Tensor] = (
            self._attributes[str(n.target)] for n in node.all_input_nodes if self._is_parameter(n)
        )
        if node.op == "call_module":
            tensors = self._attributes[str(node.target)].parameters()
        return {id(t): t.numel() * t.element_size() for t in tensors}

    def _live_bytes(self) -> list[int | None]:
        """Return what would cross a cut before each operation; None where no cut can be."""
        change = [0] * (len(self._ops) + 2)
        closed = [0] * (len(self._ops) + 2)
        for node in self._graph.nodes:
            if node.op in ("get_attr", "output") or is_size(node) or node in self._support:
                continue
            born = self._place.get(node, -1)
            last = max((self._place.get(user, -1) for user in node.users), default=-1)
            if last <= born:
                continue
            is_open = isinstance(node.meta.get("val"), Tensor)
            for at, sign in ((born + 1, 1), (last + 1, -1)):
                change[at] += sign * num_bytes(node)
                closed[at] += 0 if is_open else sign
        for start, stop in self._edit_spans():
            closed[start + 1] += 1
            closed[stop + 1] -= 1
        live, shut = list(accumulate(change)), list(accumulate(closed))
        return [live[i] if not shut[i] else None for i in range(len(self._ops) + 1)]

    def _edit_spans(self) -> list[tuple[int, int]]:
        """Return runs of operations, first to last, that work in place on the same memory."""
        spans = []
        for node in self._ops:
            for target in written(node, self._attributes):
                first = min(self._place.get(alias, 0) for alias in self._groups[target])
                spans.append((first, self._place[node]))
        return spans


def _crossing_bytes(cuts: Cuts) -> int:
    return sum(num_bytes(node) for handed in crossings(cuts) for node in handed)


def _path(node: fx.Node) -> blocks.Path:
    """Return the calls of modules around a node, from below the model down."""
    found = []
    for key, (name, kind) in node.meta.get("nn_module_stack", {}).items():
        if name.startswith("model.") and isinstance(kind, str):
            repeat = f"@{key.rpartition('@')[2]}" if "@" in key else ""
            found.append((name.removeprefix("model.") + repeat, kind))
    return tuple(found)


def _where(node: fx.Node) -> str:
    path = _path(node)
    return f"forward of {path[-1][0]}" if path else "forward"


def _keep_unused(model: nn.Module, cuts: Cuts, attributes: dict[str, Any]) -> None:
    """Give each tensor that forward never uses to the part with the tensors next to it, to be kept."""
    homes: dict[str, int] = {}
    seen: set[int] = set()
    for node, part in cuts.part_of.items():
        named = [n for n in node.all_input_nodes if n.op == "get_attr"]
        for source in named:
            homes.setdefault(str(source.target), part)
            seen.add(id(attributes[str(source.target)]))
        if node.op == "call_module":
            for key, tensor in attributes[str(node.target)].state_dict(keep_vars=True).items():
                homes.setdefault(f"{node.target}.{key}", part)
                seen.add(id(tensor))
    part_of = cuts.part_of
    assert isinstance(part_of, dict)
    start = next(iter(cuts.graph.nodes))
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if id(tensor) not in seen:
            with cuts.graph.inserting_before(start):
                node = cuts.graph.create_node("get_attr", name)
            attributes[name] = tensor
            part_of[node] = _nearest(name, homes)


def _nearest(name: str, homes: Mapping[str, int]) -> int:
    prefix = name
    while prefix:
        prefix = prefix.rpartition(".")[0]
        near = [part for home, part in homes.items() if home.startswith(f"{prefix}." if prefix else "")]
        if near:
            return near[0]
    return 0
