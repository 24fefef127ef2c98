"""A backward in two passes over one graph: I finds the gradients of the inputs, W those of the parameters.

I goes the ways that lead to an input and notes the gradient of every node from which others lead to
parameters alone; W starts there. Each node gets what it gets in a single pass, summed in the same order.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor
from torch.autograd.function import BackwardCFunction
from torch.autograd.graph import GradientEdge, Node, _engine_run_backward, get_gradient_edge

G = TypeVar("G", Tensor, Tensor | None)
_INPUT, _PARAMETER = 1, 2  # bits of what a node leads to


@dataclass(frozen=True, slots=True)
class _Start:
    """Where W starts, with which gradients, and the parameters it finds from there."""

    roots: Sequence[Tensor] | Sequence[GradientEdge]
    seeds: Sequence[Tensor]
    positions: Sequence[int]


@dataclass(frozen=True, slots=True)
class Owed:
    """What W has to do after an I; keeps the part of the graph that it needs."""

    parameters: Sequence[Tensor]
    found: Sequence[Tensor | None]  # in order of the parameters; None for those still to be found
    starts: Sequence[_Start]

    @property
    def held(self) -> list[Tensor | None]:
        """Every gradient that is kept for W."""
        return [*self.found, *(seed for start in self.starts for seed in start.seeds)]

    def copied(self) -> "Owed":
        """Return the same with gradients in memory of their own."""
        starts = [_Start(start.roots, copied(start.seeds), start.positions) for start in self.starts]
        return Owed(self.parameters, copied(self.found), starts)


def copied(gradients: Sequence[G]) -> list[G]:
    """Return copies of gradients, and None for those that are missing."""
    return [gradient if gradient is None else gradient.clone() for gradient in gradients]


def gradients_of(
    outputs: Sequence[Tensor] | Sequence[GradientEdge],
    wanted: Sequence[Tensor | GradientEdge],
    seeds: Sequence[Tensor],
    *,
    keep_graph: bool = False,
) -> tuple[Tensor | None, ...]:
    """Return what `torch.autograd.grad` does, None for what the outputs do not depend on.

    That function looks at shapes in Python first, which autograd checks again itself. Between matrix products
    the code for it is in no cache: a whole backward of a transformer block takes 3% longer with it.
    """
    found: tuple[Tensor | None, ...] = _engine_run_backward(
        tuple(outputs),
        tuple(seeds),
        keep_graph,
        False,
        tuple(wanted),
        allow_unreachable=True,
        accumulate_grad=False,
    )
    return found


def apart(gradients: Sequence[Tensor | None], held: Sequence[Tensor | None]) -> list[Tensor | None]:
    """Return gradients each in memory of its own, where none of `held` is either.

    A sum gives all its terms one gradient. Over a link each goes as a copy; in a stage the hooks of segments
    further back may write into it.
    """
    taken = {_place(gradient) for gradient in held}
    found: list[Tensor | None] = []
    for gradient in gradients:
        place = _place(gradient)
        found.append(gradient.clone() if gradient is not None and place in taken else gradient)
        taken.add(place)
    return found


def _place(gradient: Tensor | None) -> int:
    dense = gradient is not None and gradient.layout is torch.strided
    return gradient.untyped_storage().data_ptr() if gradient is not None and dense else 0


def runs_python(outputs: Sequence[Tensor]) -> bool:
    """Return whether a function written in Python, which compiled code is too, is in the graph of outputs."""
    seen: set[Node] = set()
    stack = [output.grad_fn for output in outputs]
    while stack:
        node = stack.pop()
        if isinstance(node, BackwardCFunction):
            return True
        if node is not None and node not in seen:
            seen.add(node)
            stack += [child for child, _ in node.next_functions]
    return False


def backward_input(
    outputs: Sequence[Tensor], seeds: Sequence[Tensor], inputs: Sequence[Tensor], parameters: Sequence[Tensor]
) -> tuple[Sequence[Tensor | None], Owed]:
    """Return the gradients of `inputs`, leaves that require one, and what is left to do for `parameters`.

    Where nothing leads to an input, all is left. A parameter that is used several times, or by a node that
    cannot do half of its work, is found here.
    """
    unknown: list[Tensor | None] = [None] * len(parameters)
    if not inputs:
        return (), Owed(parameters, unknown, [_Start(outputs, seeds, range(len(parameters)))])
    branches = _Graph(outputs, inputs, parameters).branches()
    late = {position for branch in branches for position in branch.positions}
    early = [position for position in range(len(parameters)) if position not in late]
    edges = [edge for branch in branches for edge in branch.edges]
    leaves = [*inputs, *(parameters[position] for position in early)]
    wanted = [*map(get_gradient_edge, leaves), *edges]
    found = gradients_of(outputs, wanted, seeds, keep_graph=True)
    for position, gradient in zip(early, found[len(inputs) :], strict=False):
        unknown[position] = gradient
    captured = iter(found[len(inputs) + len(early) :])
    return found[: len(inputs)], Owed(parameters, unknown, [branch.start(captured) for branch in branches])


def backward_weight(owed: Owed) -> list[Tensor | None]:
    """Return the gradients of all parameters; frees the graph."""
    found = list(owed.found)
    for start in owed.starts:
        if not start.roots or not start.positions:
            continue
        wanted = [owed.parameters[position] for position in start.positions]
        gradients = gradients_of(start.roots, wanted, start.seeds)
        for position, gradient in zip(start.positions, gradients, strict=True):
            found[position] = gradient
    return found


def _is_whole(node: Node) -> bool:
    """Return whether a node cannot do half of its work.

    A function written in Python does all of it each time it is called. A group norm of channels-last memory
    on the CPU, asked for the gradients of its parameters alone, reads memory that is not there (torch 2.13).
    """
    return isinstance(node, BackwardCFunction) or node.name() == "NativeGroupNormBackward0"


@dataclass(frozen=True, slots=True)
class _Branch:
    """A node on a way to an input, from which other ways lead to these parameters."""

    edges: Sequence[GradientEdge]  # into the node
    positions: Sequence[int]

    def start(self, gradients: Iterator[Tensor | None]) -> _Start:
        """Take the gradients of the edges, in order; what got none gives none."""
        pairs = [(edge, gradient) for edge in self.edges if (gradient := next(gradients)) is not None]
        return _Start([edge for edge, _ in pairs], [gradient for _, gradient in pairs], self.positions)


class _Graph:
    """What lies behind a segment's outputs."""

    def __init__(
        self, outputs: Sequence[Tensor], inputs: Sequence[Tensor], parameters: Sequence[Tensor]
    ) -> None:
        self._inputs = {id(leaf) for leaf in inputs}
        self._positions = {id(parameter): at for at, parameter in enumerate(parameters)}
        self._roots = [get_gradient_edge(output) for output in outputs]
        self._leads: dict[Node, int] = {}
        self._entries: dict[Node, dict[int, None]] = {}  # outputs of a node that something uses
        for root in self._roots:
            self._entries.setdefault(root.node, {})[root.output_nr] = None
            self._walk(root.node)

    def branches(self) -> list[_Branch]:
        """Return the nodes where W starts; each of their parameters has this one way in."""
        uses: Counter[int] = Counter()
        found: list[tuple[Node, list[int]]] = []
        for node, leads in self._leads.items():
            if not leads & _INPUT:
                continue
            beyond = [
                at for child, _ in node.next_functions if child is not None for at in self._alone(child)
            ]
            uses.update(beyond)
            if beyond:
                found.append((node, beyond))
        for root in self._roots:
            uses.update(2 * self._alone(root.node))  # no node before it whose gradient could be noted
        branches = []
        for node, beyond in found:
            positions = [] if _is_whole(node) else [at for at in beyond if uses[at] == 1]
            if positions:
                branches.append(_Branch([GradientEdge(node, nr) for nr in self._entries[node]], positions))
        return branches

    def _walk(self, root: Node) -> None:
        """Note what every node behind `root` leads to, children first."""
        stack = [(root, False)]
        while stack:
            node, is_done = stack.pop()
            if node in self._leads:
                continue
            if is_done:
                self._leads[node] = self._of_leaf(node) | self._of_children(node)
                continue
            stack.append((node, True))
            for child, nr in node.next_functions:
                if child is not None:
                    self._entries.setdefault(child, {})[nr] = None
                    stack.append((child, False))

    def _of_children(self, node: Node) -> int:
        leads = 0
        for child, _ in node.next_functions:
            if child is not None:
                leads |= self._leads[child]
        return leads

    def _of_leaf(self, node: Node) -> int:
        leaf = id(getattr(node, "variable", None))
        return _INPUT * (leaf in self._inputs) | _PARAMETER * (leaf in self._positions)

    def _alone(self, node: Node) -> list[int]:
        """Return the parameters behind a node that leads to no input."""
        if self._leads[node] != _PARAMETER:
            return []
        seen, stack, found = {node}, [node], []
        while stack:
            here = stack.pop()
            at = self._positions.get(id(getattr(here, "variable", None)))
            if at is not None:
                found.append(at)
            for child, _ in here.next_functions:
                if child is not None and child not in seen:
                    seen.add(child)
                    stack.append(child)
        return found
