"""The sums of a stage's gradients over its replicas, in the canonical order (contract E4).

Each replica owns some elements: it collects every replica's nodes of them, finishes the tree and sends the
sum back. That is a reduce-scatter and an all-gather, at their volume where D is a power of two. A segment's
begins as soon as its last gradient is there; buckets let sums and both directions overlap.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from varuna_runtime.spec.reduction import Node, combine
from varuna_runtime.worker.accumulate import Accumulator, owned_by
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.signals import PROGRESSED, Stepping, Waiting, receive


@dataclass(frozen=True, slots=True)
class Sum:
    """Gradient sums over the whole step: of one space, or of what this rank owns of it.

    `touched[i]` is false if no micro-batch gave parameter i a gradient.
    """

    flat: Tensor
    touched: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Team:
    """The replicas of one stage, and how they exchange gradients."""

    link: Link
    peers: tuple[int, ...]  # ranks, by replica
    replica: int  # of this rank
    is_sharded: bool = False  # each replica needs the sums of what it owns only
    wire_dtype: torch.dtype | None = None  # what wider floats are rounded to on the wire

    @property
    def others(self) -> tuple[tuple[int, int], ...]:
        """(replica, rank) of every other one; the next one first, so that not all send to the same."""
        order = [(self.replica + k) % len(self.peers) for k in range(1, len(self.peers))]
        return tuple((d, self.peers[d]) for d in order)

    def packed(self, values: Tensor) -> Tensor:
        """Return what goes over the wire for `values`."""
        narrow = self.wire_dtype
        if narrow is None or not values.is_floating_point() or values.itemsize <= narrow.itemsize:
            return values
        return values.to(narrow)


class StageReduction:
    """One rank's part in the reduction of its stage, step by step; never blocks.

    A link with a thread of its own goes on with it while the rank computes; what it does then is what the
    rank would do later, in an order that no sum depends on.
    """

    def __init__(
        self, team: Team, accumulators: Sequence[Accumulator], ranges: Sequence[Sequence[slice]]
    ) -> None:
        """Take every space of the stage in order, and who owns which elements of it."""
        self._spaces = [_SpaceReduction(team, a, r) for a, r in zip(accumulators, ranges, strict=True)]
        self._works: list[tuple[int, Stepping[None]]] = []  # with the space they belong to
        self._pending: set[int] = set()  # spaces that did not start yet
        self._complete: list[int] = []
        self._waits_for = ""
        self._turn = threading.Lock()  # held by whoever goes on with it
        self._failure: Exception | None = None  # met by the link's thread
        self._link = team.link

    def begin(self, virtual: int) -> None:
        """Start a step of `virtual` virtual replicas; whatever is left of another one is forgotten."""
        with self._turn:
            self._works.clear()
            self._complete.clear()
            self._pending = set(range(len(self._spaces)))
            for space in self._spaces:
                space.begin(virtual)
        self._link.meanwhile(self._go_on)

    def start(self, segment: int) -> None:
        """Hand over the sums of a segment: this replica's last gradient of the step is in them."""
        with self._turn:
            for at in sorted(self._pending):
                if self._spaces[at].segment == segment:
                    self._pending.remove(at)
                    self._spaces[at].scatter()
                    self._works += ((at, self._spaces[at].combined()), (at, self._spaces[at].gathered()))

    def advance(self) -> bool:
        """Do what the messages that are here allow; return whether that was anything."""
        with self._turn:
            return self._advanced()

    def _go_on(self) -> None:
        """Do the same in the link's thread, unless the rank's own is at it; an error waits for that one."""
        if not self._turn.acquire(blocking=False):
            return
        try:
            self._advanced()
        except Exception as err:
            self._failure = err
        finally:
            self._turn.release()

    def _advanced(self) -> bool:
        if self._failure is not None:
            raise self._failure
        has_moved = False
        for at, work in tuple(self._works):
            for signal in work:
                if isinstance(signal, Waiting):
                    self._waits_for = signal.on
                    break
                has_moved = True
            else:
                self._works.remove((at, work))
                if all(at != other for other, _ in self._works):
                    self._complete.append(at)
                has_moved = True
        return has_moved

    def finished(self, on_sum: Callable[[int, Sum], None]) -> Stepping[list[Sum]]:
        """Complete the step; `on_sum` gets each space's place and sum while others are still on their way.

        Return the sums in order.
        """
        for segment in sorted({space.segment for space in self._spaces}, reverse=True):
            self.start(segment)  # a replica may have had no micro-batch
        while True:
            with self._turn:
                has_moved = self._advanced()
                at = self._complete.pop(0) if self._complete else None
                has_more = bool(self._works or self._complete)
            if at is not None:
                on_sum(at, self._spaces[at].sum)
            if not has_more:
                break
            yield PROGRESSED if has_moved or at is not None else Waiting(self._waits_for)
        return [space.sum for space in self._spaces]


class _SpaceReduction:
    """The same for one space."""

    def __init__(self, team: Team, accumulator: Accumulator, ranges: Sequence[slice]) -> None:
        space = accumulator.space
        self.segment = space.segment
        self._team = team
        self._accumulator = accumulator
        self._own = ranges[team.replica]
        self._buckets = [space.buckets(part) for part in ranges]  # by owner
        self._tag = f"gradients {space.segment}.{space.number}"
        self._virtual = 1
        self._touched = accumulator.touched

    @property
    def sum(self) -> Sum:
        """The result, once both works below have ended."""
        result = self._accumulator.result()
        return Sum(result[self._own] if self._team.is_sharded else result, self._touched)

    def begin(self, virtual: int) -> None:
        self._virtual = virtual

    def scatter(self) -> None:
        """Send every other owner its elements of this replica's nodes, and everyone what was touched."""
        team, nodes = self._team, self._accumulator.nodes().values()
        self._touched = self._accumulator.touched
        for replica, rank in team.others:
            team.link.send(rank, f"{self._tag} touched", (self._touched,), can_wait=True)
            for bucket in self._buckets[replica]:
                parts = tuple(team.packed(flat[bucket]) for flat in nodes)
                team.link.send(rank, self._tag, parts, can_wait=True)

    def combined(self) -> Stepping[None]:
        """Sum the owned elements, bucket by bucket, and hand them to the others."""
        team, result = self._team, self._accumulator.result()
        touched = self._touched.clone()
        for _, rank in team.others:
            touched |= (yield from receive(team.link, rank, f"{self._tag} touched"))[0]
        self._touched = touched
        for bucket in self._buckets[team.replica]:
            total = yield from self._bucket_sum(bucket)
            if not team.is_sharded:
                total = team.packed(total)  # ours too, so that all replicas hold the same
                for _, rank in team.others:
                    team.link.send(rank, f"{self._tag} sum", (total,), can_wait=True)
            if total.data_ptr() != result[bucket].data_ptr():
                result[bucket].copy_(total)
            yield PROGRESSED

    def gathered(self) -> Stepping[None]:
        """Fill in what the other replicas own, if they are wanted here."""
        team, result = self._team, self._accumulator.result()
        for replica, rank in () if team.is_sharded else team.others:
            for bucket in self._buckets[replica]:
                (part,) = yield from receive(team.link, rank, f"{self._tag} sum")
                # The owner has our slices of this bucket, so the link no longer reads them.
                result[bucket].copy_(part)
                yield PROGRESSED

    def _bucket_sum(self, bucket: slice) -> Stepping[Tensor]:
        parts = {node: flat[bucket] for node, flat in self._accumulator.nodes().items()}
        for replica, rank in self._team.others:
            slices = yield from receive(self._team.link, rank, self._tag)
            wide = [t.to(self._accumulator.space.dtype) for t in slices]
            parts.update(zip(owned_by(self._virtual, len(self._team.peers), replica), wide, strict=True))
        return combine(Node(0, self._virtual), parts, torch.Tensor.add_)
