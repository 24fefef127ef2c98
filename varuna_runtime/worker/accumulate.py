"""Sums of a segment's parameter gradients over micro-batches, in the canonical order (contract E4)."""

from bisect import bisect_left
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import accumulate

import torch
from torch import Tensor

from varuna_runtime.spec.reduction import Node, children, owned_nodes, share

BLOCK = 1 << 18  # elements; a block never spans parameters (contract E5)
BUCKET = 1 << 18  # elements that travel in one message: sums and both directions of a link then overlap
STRIP = 16  # elements: shares of sums begin aligned as tensors do


class Unit(Enum):
    """What is dealt to replicas in whole.

    A sum of tensors has the same bits wherever it is cut, so sums alone go in strips, which all replicas can
    have alike many of. Norms and optimizers of an owner need blocks, or parameters (contract E5).
    """

    STRIP = "strip"
    BLOCK = "block"
    PARAMETER = "parameter"


@dataclass(frozen=True, slots=True)
class Piece:
    """Elements [start, stop) of one parameter of a space; `index` is its place in the space."""

    index: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Space:
    """Trainable parameters of one segment that share a dtype, laid out one after the other."""

    segment: int
    number: int = 0  # among the spaces of its segment
    is_tied: bool = False  # one parameter, also used elsewhere
    dtype: torch.dtype
    names: tuple[str, ...]  # as seen from the segment, in its canonical order
    shapes: tuple[torch.Size, ...]
    positions: tuple[int, ...]  # of these parameters among the segment's trainable ones

    @property
    def offsets(self) -> tuple[int, ...]:
        """First element of each parameter, then the total."""
        return tuple(accumulate((shape.numel() for shape in self.shapes), initial=0))

    def views(self, flat: Tensor) -> tuple[Tensor, ...]:
        """Return `flat` as one view per parameter."""
        parts = torch.split(flat, [shape.numel() for shape in self.shapes])
        return tuple(part.view(shape) for part, shape in zip(parts, self.shapes, strict=True))

    def blocks(self) -> tuple[range, ...]:
        """Return the element range of every block, in order."""
        spans = zip(self.offsets, self.offsets[1:], strict=False)
        return tuple(
            range(a, min(a + BLOCK, last)) for first, last in spans for a in range(first, last, BLOCK)
        )

    def owner_ranges(self, replicas: int, unit: Unit = Unit.STRIP) -> tuple[slice, ...]:
        """Return the elements each replica owns: contiguous, about equal, whole units."""
        total = self.offsets[-1]
        wanted = [d * total / replicas for d in range(replicas)]
        if unit is Unit.STRIP:
            cuts = [min(round(place / STRIP) * STRIP, total) for place in wanted]
        else:
            edges = self.offsets if unit is Unit.PARAMETER else (0, *(block.stop for block in self.blocks()))
            cuts = [_nearest(edges, place) for place in wanted]
        return tuple(slice(a, b) for a, b in zip(cuts, [*cuts[1:], total], strict=True))

    def pieces(self, part: slice) -> tuple[Piece, ...]:
        """Return what `part` holds of each parameter, in order."""
        spans = zip(self.offsets, self.offsets[1:], strict=False)
        found = (
            Piece(i, max(part.start, first) - first, min(part.stop, last) - first)
            for i, (first, last) in enumerate(spans)
        )
        return tuple(piece for piece in found if piece.start < piece.stop)

    def buckets(self, part: slice) -> tuple[slice, ...]:
        """Return `part` as runs of at most BUCKET elements, in order."""
        starts = range(part.start, part.stop, BUCKET)
        return tuple(slice(a, min(a + BUCKET, part.stop)) for a in starts)


def _nearest(edges: Sequence[int], wanted: float) -> int:
    after = bisect_left(edges, wanted)
    return min(edges[max(after - 1, 0) : after + 1], key=lambda edge: abs(edge - wanted))


def spaces_of(
    segment: int, parameters: Sequence[tuple[str, Tensor]], *, alone: Collection[str] = ()
) -> tuple[Space, ...]:
    """Return the spaces of a segment's trainable parameters, in order of each one's first parameter.

    Parameters named in `alone` get a space each: how it is cut then depends on nothing else.
    """
    members: dict[tuple[torch.dtype, str], list[int]] = {}
    for position, (name, parameter) in enumerate(parameters):
        members.setdefault((parameter.dtype, name if name in alone else ""), []).append(position)
    return tuple(
        Space(
            segment=segment,
            number=number,
            is_tied=tied_name != "",
            dtype=dtype,
            names=tuple(parameters[p][0] for p in positions),
            shapes=tuple(parameters[p][1].shape for p in positions),
            positions=tuple(positions),
        )
        for number, ((dtype, tied_name), positions) in enumerate(members.items())
    )


def dealt_ranges(spaces: Sequence[Space], replicas: int, unit: Unit = Unit.STRIP) -> list[tuple[slice, ...]]:
    """Return what each replica owns of every space, by replica, so that all own about as much in the end.

    A tied space is owned alike wherever it is used.
    """
    loads = [0] * replicas
    dealt: list[tuple[slice, ...]] = []
    for space in spaces:
        parts = space.owner_ranges(replicas, unit)
        if not space.is_tied:
            by_size = iter(sorted(parts, key=lambda part: part.start - part.stop))
            found = {d: next(by_size) for d in sorted(range(replicas), key=lambda d: loads[d])}
            parts = tuple(found[d] for d in range(replicas))
        loads = [load + part.stop - part.start for load, part in zip(loads, parts, strict=True)]
        dealt.append(parts)
    return dealt


@dataclass(frozen=True, slots=True)
class _Buffer:
    """A sum of a whole space, and its view of each parameter."""

    flat: Tensor
    views: tuple[Tensor, ...]


_Loose = Sequence[Tensor | None]  # one micro-batch's gradients as autograd gave them, never written to


class Accumulator:
    """Sums one space's gradients over one replica's micro-batches of a step.

    Where a virtual replica has one micro-batch, its gradients stay where they are until the sum with its
    sibling is made. Holds at most ceil(log2(number of virtual replicas)) + 1 sums, these among them; the
    buffers are kept for the next step.
    """

    def __init__(self, space: Space, device: torch.device) -> None:
        self.space = space
        self._touched = [False] * len(space.names)
        self._parts: list[int] | None = None  # gradients that are parts of larger storages, once known
        self._device = device
        self.num_buffers = 0
        self._free: list[_Buffer] = []
        self._stack: list[tuple[Node, _Buffer | _Loose]] = []  # at the end of a step buffers only
        self._parent: dict[tuple[Node, Node], Node] = {}
        self._left: set[Node] = set()  # nodes whose sibling this replica sums too, later
        self._leaf: _Buffer | _Loose | None = None
        self._result: _Buffer | None = None

    @property
    def touched(self) -> Tensor:
        """Tell by a bool per parameter whether some micro-batch of the step gave it a gradient."""
        return torch.tensor(self._touched, dtype=torch.bool)

    def start(self, virtual: int, owned: range) -> None:
        """Begin a step in which this replica owns the virtual replicas `owned` of `virtual`."""
        held = (*(value for _, value in self._stack), self._leaf, self._result)
        self._free.extend(value for value in held if isinstance(value, _Buffer))
        self._stack.clear()
        self._leaf = self._result = None  # a leaf was left only where the last step was abandoned
        self._touched = [False] * len(self.space.names)
        self._parent = _merges(owned_nodes(virtual, owned))
        self._left = {left for left, _ in self._parent}

    def add(self, gradients: Sequence[Tensor | None], *, is_last: bool = False) -> None:
        """Add one micro-batch's gradients, given in the segment's order of trainable parameters.

        `is_last`: it ends its virtual replica.
        """
        picked = [gradients[p] for p in self.space.positions]
        if not all(self._touched):
            self._touched = [was or g is not None for was, g in zip(self._touched, picked, strict=True)]
        leaf = self._leaf
        if leaf is None:
            self._leaf = self._kept(picked) if is_last else self._gathered(picked)
            return
        assert isinstance(leaf, _Buffer), "a virtual replica goes on after its last micro-batch"
        for view, gradient in zip(leaf.views, picked, strict=True):
            if gradient is not None:
                view.add_(gradient)

    def finish_leaf(self, virtual_replica: int) -> None:
        """End a virtual replica's sum and merge it upwards as far as its left siblings are here."""
        assert self._leaf is not None, "a virtual replica without micro-batches"
        node, value = Node(virtual_replica, virtual_replica + 1), self._leaf
        self._leaf = None
        while self._stack and (parent := self._parent.get((self._stack[-1][0], node))):
            node, value = parent, self._merged(self._stack.pop()[1], value)
        self._stack.append((node, value if node in self._left else self._gathered(value)))

    def nodes(self) -> dict[Node, Tensor]:
        """Return the sums of the maximal nodes this replica completed alone, left to right."""
        return {node: self._gathered(value).flat for node, value in self._stack}

    def result(self) -> Tensor:
        """Return the buffer for the sum over all replicas; the first node's own, where there is one."""
        if self._stack:
            return self._gathered(self._stack[0][1]).flat
        if self._result is None:
            self._result = self._spare()
        return self._result.flat

    def _kept(self, gradients: _Loose) -> _Loose:
        """Return gradients to keep: of a part of a larger storage a copy, as it would hold all of that.

        Which are such parts follows from what computes them, so the first time tells.
        """
        if self._parts is None:
            self._parts = [at for at, g in enumerate(gradients) if g is not None and _is_part(g)]
        if not self._parts:
            return gradients
        return [g.clone() if g is not None and at in self._parts else g for at, g in enumerate(gradients)]

    def _merged(self, left: _Buffer | _Loose, right: _Buffer | _Loose) -> _Buffer:
        if isinstance(left, _Buffer) and isinstance(right, _Buffer):
            left.flat.add_(right.flat)
            self._free.append(right)
            return left
        into = next((value for value in (left, right) if isinstance(value, _Buffer)), None) or self._spare()
        for view, first, second in zip(into.views, _values(left), _values(right), strict=True):
            if first is not None and second is not None:
                torch.add(first, second, out=view)
            else:
                _set_alone(view, second if first is None else first)
        return into

    def _gathered(self, value: _Buffer | _Loose) -> _Buffer:
        if isinstance(value, _Buffer):
            return value
        buffer = self._spare()
        for view, gradient in zip(buffer.views, value, strict=True):
            view.zero_() if gradient is None else view.copy_(gradient)
        return buffer

    def _spare(self) -> _Buffer:
        if self._free:
            return self._free.pop()
        self.num_buffers += 1
        flat = torch.empty(self.space.offsets[-1], dtype=self.space.dtype, device=self._device)
        return _Buffer(flat, self.space.views(flat))


def _values(value: _Buffer | _Loose) -> _Loose:
    return value.views if isinstance(value, _Buffer) else value


def _set_alone(view: Tensor, alone: Tensor | None) -> None:
    """Set `view`, which may be the same, to the sum of a gradient and a missing one, which counts as zero."""
    if alone is not None:
        torch.add(alone, 0.0, out=view)  # which tells a negative zero from a zero, as adding zeros does
    else:
        view.zero_()


def _is_part(gradient: Tensor) -> bool:
    return gradient.untyped_storage().nbytes() != gradient.nbytes


def _merges(roots: Sequence[Node]) -> dict[tuple[Node, Node], Node]:
    """Return the parent of every pair of siblings at or below `roots`."""
    found: dict[tuple[Node, Node], Node] = {}
    pending = list(roots)
    while pending:
        node = pending.pop()
        if not node.is_leaf:
            left, right = children(node)
            found[left, right] = node
            pending += (left, right)
    return found


def owned_by(virtual: int, replicas: int, replica: int) -> tuple[Node, ...]:
    """Return the nodes that `replica` hands over in a step of `virtual` virtual replicas."""
    return owned_nodes(virtual, share(virtual, replicas, replica))
