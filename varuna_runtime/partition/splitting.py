"""Splits one traced graph into a graph per part, and finds what each part hands to the next."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import fx, nn

from varuna_runtime.partition.cutpoint import carried
from varuna_runtime.spec.errors import ModelRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    """Numbers of a graph that are sizes of tensors; no part hands on a number: it asks a tensor for it."""

    of: Mapping[fx.Node, str] = field(default_factory=dict)  # node whose value is a size -> that size as text
    dims: Mapping[fx.Node, tuple[str, ...]] = field(default_factory=dict)  # tensor -> its sizes as text
    inputs: tuple[fx.Node, ...] = ()  # the model's inputs, which know every size at last

    def source(self, size: fx.Node, among: Iterable[fx.Node]) -> tuple[fx.Node, int] | None:
        """Return a tensor with that size, and where."""
        wanted = self.of[size]
        for node in among:
            if wanted in self.dims.get(node, ()):
                return node, self.dims[node].index(wanted)
        return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cuts:
    """A graph and the part each of its nodes belongs to; attributes belong to every part that uses them."""

    graph: fx.Graph
    part_of: Mapping[fx.Node, int]
    first: Sequence[fx.Node | None]  # per cut: the value that goes first across it, if it matters
    again: frozenset[fx.Node] = frozenset()  # computed again wherever they are needed
    sizes: Sizes = field(default_factory=Sizes)

    @property
    def num_parts(self) -> int:
        """Number of parts."""
        return len(self.first) + 1


def crossings(cuts: Cuts) -> list[tuple[fx.Node, ...]]:
    """Return what each part but the last hands on: what any later part needs, in order of making."""
    order = {node: place for place, node in enumerate(cuts.graph.nodes)}
    found: list[tuple[fx.Node, ...]] = []
    later: set[fx.Node] = set()
    for part in reversed(range(1, cuts.num_parts)):
        later = {node for node in later if cuts.part_of[node] < part} | _needs(cuts, part, later)
        first = cuts.first[part - 1]
        found.append(tuple(sorted(later, key=lambda node: (node is not first, order[node]))))
    return found[::-1]


def parts(
    cuts: Cuts, root: nn.Module | dict[str, Any], handed: Sequence[tuple[fx.Node, ...]]
) -> tuple[fx.GraphModule, ...]:
    """Return one module per part; names inside are those of `root`."""
    return tuple(
        fx.GraphModule(root, _part_graph(cuts, part, handed), class_name=f"Part{part}")
        for part in range(cuts.num_parts)
    )


def _needs(cuts: Cuts, part: int, passing: set[fx.Node]) -> set[fx.Node]:
    """Return the nodes of earlier parts that a part needs, given what passes through it anyway."""
    found: set[fx.Node] = set()
    sizes: list[fx.Node] = []
    seen: set[fx.Node] = set()
    pending = [
        node for node, made_in in cuts.part_of.items() if made_in == part and not _is_repeated(cuts, node)
    ]
    while pending:
        for node in pending.pop().all_input_nodes:
            if node in seen or node.op == "get_attr":
                continue
            seen.add(node)
            if node in cuts.sizes.of:
                sizes.append(node)
            elif _is_repeated(cuts, node):
                pending.append(node)
            elif cuts.part_of[node] < part:
                found.add(node)
    # A size may come from any tensor that is there; only then is it known what else must be.
    there = {node for node in passing if cuts.part_of[node] < part} | found
    while sizes:
        size = sizes.pop()
        if cuts.sizes.source(size, there) is not None:
            continue
        inner = [node for node in size.all_input_nodes if node in cuts.sizes.of]
        if inner:
            sizes.extend(inner)
            continue
        origin = cuts.sizes.source(size, cuts.sizes.inputs)
        if origin is None:
            raise ModelRefused(
                f"the size {size.name!r} depends on values and would cross a cut; "
                "put what it is computed from and what uses it into one block, or set CutPoints"
            )
        found.add(origin[0])
        there.add(origin[0])
    return found


def _is_repeated(cuts: Cuts, node: fx.Node) -> bool:
    return node in cuts.again or node in cuts.sizes.of


def _part_graph(cuts: Cuts, part: int, handed: Sequence[tuple[fx.Node, ...]]) -> fx.Graph:
    graph = fx.Graph()
    if part:
        incoming = handed[part - 1]
    else:
        incoming = tuple(node for node in cuts.graph.nodes if node.op == "placeholder")
    copies = {node: graph.placeholder(node.name) for node in incoming}

    def here(node: fx.Node) -> fx.Node:
        if node in copies:
            return copies[node]
        source = cuts.sizes.source(node, incoming) if node in cuts.sizes.of else None
        if source is not None:
            tensor, dim = source
            copies[node] = graph.call_function(torch.ops.aten.sym_size.int, (copies[tensor], dim))
        else:  # a parameter, or something to be computed again
            copies[node] = graph.node_copy(node, here)
        copies[node].meta = {}
        return copies[node]

    for node, made_in in cuts.part_of.items():
        is_unused = node.op == "get_attr" and not node.users
        if made_in == part and (is_unused or node.op.startswith("call")) and not _is_repeated(cuts, node):
            here(node)
    if part < len(handed):
        values = tuple(here(node) for node in handed[part])
        names = tuple(node.name for node in handed[part])
        graph.output(graph.call_function(carried, (values, names)))
    else:
        output = next(iter(reversed(cuts.graph.nodes)))
        graph.output(fx.map_arg(output.args[0], here))
    return graph
