"""The canonical order of gradient sums over micro-batches (contract E4), independent of D.

Micro-batches 0..M-1 fall into V virtual replicas of contiguous micro-batches; inside one they are summed
in index order, across them by a binary tree. A replica owns contiguous virtual replicas; it hands over the
largest canonical nodes it can complete alone and the owner of a block finishes the tree in the same order.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True, order=True)
class Node:
    """The sum over virtual replicas [first, last)."""

    first: int
    last: int

    @property
    def is_leaf(self) -> bool:
        """True for a single virtual replica."""
        return self.last - self.first == 1


def share(total: int, parts: int, index: int) -> range:
    """Return the contiguous balanced share `index` of range(total); sizes differ by at most one."""
    return range(index * total // parts, (index + 1) * total // parts)


def children(node: Node) -> tuple[Node, Node]:
    """Return the two halves; the left one spans the largest power of two below the width."""
    width = 1 << ((node.last - node.first - 1).bit_length() - 1)
    return Node(node.first, node.first + width), Node(node.first + width, node.last)


def owned_nodes(virtual_replicas: int, owned: range) -> tuple[Node, ...]:
    """Return the maximal canonical nodes inside `owned`, left to right."""

    def walk(node: Node) -> Iterator[Node]:
        if node.last <= owned.start or owned.stop <= node.first:
            return
        if owned.start <= node.first and node.last <= owned.stop:
            yield node
            return
        for child in children(node):
            yield from walk(child)

    return tuple(walk(Node(0, virtual_replicas))) if owned else ()


def combine(node: Node, parts: Mapping[Node, T], add: Callable[[T, T], T]) -> T:
    """Return the value of `node` from the parts below it; `add(left, right)` may work in place on `left`."""
    if node in parts:
        return parts[node]
    left, right = children(node)
    return add(combine(left, parts, add), combine(right, parts, add))
