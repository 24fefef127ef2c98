"""The sum of a segment's gradients over the replicas of its stage, in the canonical order (contract E4).

Each replica owns some blocks: it collects every replica's nodes of them, finishes the tree and sends the sum
back. That is a reduce-scatter and an all-gather, at their volume where D is a power of two.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from varuna_runtime.spec.reduction import Node, combine
from varuna_runtime.worker.accumulate import Accumulator, owned_by
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.signals import PROGRESSED, Stepping, receive


@dataclass(frozen=True, slots=True)
class Sum:
    """Gradient sums of one space over the whole step; `touched[i]` is false if no micro-batch gave one."""

    flat: Tensor
    touched: Tensor


class SpaceReduction:
    """One step's reduction of one space on one rank."""

    def __init__(
        self, link: Link, accumulator: Accumulator, *, peers: Sequence[int], replica: int, virtual: int
    ) -> None:
        """Take the ranks of the stage in `peers`, by replica; `replica` is this rank's place among them."""
        space = accumulator.space
        self._link = link
        self._accumulator = accumulator
        self._replica = replica
        self._others = [(d, rank) for d, rank in enumerate(peers) if d != replica]
        self._virtual = virtual
        self._num_replicas = len(peers)
        self._ranges = space.owner_ranges(len(peers))
        self._tag = f"gradients {space.segment} {space.dtype}"

    def scatter(self) -> None:
        """Send every other owner its blocks of this replica's nodes."""
        nodes, touched = self._accumulator.nodes().values(), self._accumulator.touched
        for replica, rank in self._others:
            part = self._ranges[replica]
            self._link.send(rank, self._tag, (touched, *(flat[part] for flat in nodes)))

    def combine(self) -> Stepping[Sum]:
        """Sum the owned blocks and hand them to the others; the rest of the result is still to come."""
        result, touched = self._accumulator.result(), self._accumulator.touched
        own = self._ranges[self._replica]
        total = yield from self._owned_sum(own, touched)
        for _, rank in self._others:
            self._link.send(rank, f"{self._tag} sum", (total,))
        if total.data_ptr() != result[own].data_ptr():
            result[own].copy_(total)
        yield PROGRESSED
        return Sum(result, touched)

    def gather(self, combined: Sum) -> Stepping[Sum]:
        """Fill in the blocks that the other replicas own."""
        for replica, rank in self._others:
            (part,) = yield from receive(self._link, rank, f"{self._tag} sum")
            # The owner has our slices of this range, so the link no longer reads them.
            combined.flat[self._ranges[replica]].copy_(part)
        return combined

    def _owned_sum(self, own: slice, touched: Tensor) -> Stepping[Tensor]:
        parts = {node: flat[own] for node, flat in self._accumulator.nodes().items()}
        for replica, rank in self._others:
            flags, *slices = yield from receive(self._link, rank, self._tag)
            touched |= flags
            parts.update(zip(owned_by(self._virtual, self._num_replicas, replica), slices, strict=True))
        return combine(Node(0, self._virtual), parts, torch.Tensor.add_)
