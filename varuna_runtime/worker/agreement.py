"""What all ranks must know alike: loss totals, gradient norm, and the vote on a step (contract E6).

Rank 0 collects every rank's part, folds them in canonical order and sends everyone the result.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain

import torch
from torch import Tensor

from varuna_runtime.spec.errors import StepDiverged
from varuna_runtime.spec.layout import Layout
from varuna_runtime.spec.manifest import Figure
from varuna_runtime.worker.figures import (
    Folding,
    Measures,
    packed,
    packed_figures,
    unpacked,
    unpacked_figures,
)
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.norm import fold, norm_of
from varuna_runtime.worker.signals import PROGRESSED, Drain, Stepping, receive
from varuna_runtime.worker.weights import weights_sha256

_NUM_WORDS = 5  # of a ballot, before its partials


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """Sums over every micro-batch of a step."""

    loss_sum: float
    weight: float

    @property
    def loss(self) -> float:
        """Mean over the weight."""
        return self.loss_sum / self.weight


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """One rank's vote; `partials` are its stage's by block; 0 or none where another replica tells."""

    drain: Drain
    checkpoint: bool
    partials: tuple[float, ...]
    keep: bool = False  # this rank wants a copy of the step, and has memory free for it
    kept: int = -1  # the newest step that its copies are complete for; -1: none
    can_drain: Drain = Drain.DURABLE  # the least kind of drain that saves what this rank holds


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The outcome, equal on every rank."""

    drain: Drain
    checkpoint: bool
    grad_norm: float
    keep: bool = False  # every rank wanted a copy
    recoverable: int = -1  # the newest step that every rank's copies are complete for; -1: there is none


class Agreement:
    """One rank's side of the agreements of its generation."""

    def __init__(self, link: Link, layout: Layout) -> None:
        self._link = link
        self._layout = layout
        self._ranks = range(layout.world_size)
        self._losses = torch.empty((0, 2), dtype=torch.float64)
        self._folding = Folding()  # on rank 0

    def contribute_losses(self, losses: Tensor) -> None:
        """Send a replica's `(micro-batches, 2)` float64 losses and weights; for ranks of the last stage."""
        self._losses = losses
        if self._link.rank:
            self._link.send(0, "losses", (losses,))

    def totals(self) -> Stepping[Totals]:
        """Return the step's totals, folded in order of micro-batch."""
        result = yield from self._from_rank_0("totals", self._fold_losses())
        loss_sum, weight = result.tolist()
        return Totals(loss_sum=loss_sum, weight=weight)

    def _fold_losses(self) -> Stepping[Tensor]:
        last = self._layout.stages - 1
        parts = []
        for replica in range(self._layout.replicas):
            rank = self._layout.rank(stage=last, replica=replica)
            parts.append((yield from self._part(rank, "losses", self._losses)))
        columns = torch.cat(parts).T.tolist()
        return torch.tensor([fold(column) for column in columns], dtype=torch.float64)

    def decide(self, ballot: Ballot) -> Stepping[Decision]:
        """Vote, and return the outcome."""
        words = [ballot.drain, ballot.can_drain, ballot.checkpoint, ballot.keep, ballot.kept]
        mine = torch.tensor([*words, *ballot.partials], dtype=torch.float64)
        if self._link.rank:
            self._link.send(0, "ballot", (mine,))
        result = yield from self._from_rank_0("decision", self._count(mine))
        drain, checkpoint, keep, recoverable, norm = result.tolist()
        return Decision(
            drain=Drain(int(drain)),
            checkpoint=bool(checkpoint),
            grad_norm=norm,
            keep=bool(keep),
            recoverable=int(recoverable),
        )

    def _count(self, mine: Tensor) -> Stepping[Tensor]:
        words: list[list[float]] = []
        partials: list[list[float]] = [[] for _ in range(self._layout.stages)]
        for rank in self._ranks:
            ballot = (yield from self._part(rank, "ballot", mine)).tolist()
            words.append(ballot[:_NUM_WORDS])
            stage = self._layout.stage_of(rank)
            partials[stage] = _joined(partials[stage], ballot[_NUM_WORDS:])
        drain, can_drain, checkpoint, keep, kept = zip(*words, strict=True)
        stop = _drain_of(drain, can_drain)
        norm = norm_of(chain.from_iterable(partials))
        return torch.tensor([stop, max(checkpoint), min(keep), min(kept), norm], dtype=torch.float64)

    def all_agree(self, is_well: bool) -> Stepping[bool]:
        """Return whether every rank says yes."""
        mine = torch.tensor(is_well)
        if self._link.rank:
            self._link.send(0, "word", (mine,))
        return bool((yield from self._from_rank_0("all agree", self._all(mine))))

    def _all(self, mine: Tensor) -> Stepping[Tensor]:
        words = []
        for rank in self._ranks:
            words.append(bool((yield from self._part(rank, "word", mine))))
        return torch.tensor(all(words))

    def begin_figures(self) -> None:
        """Forget what an abandoned evaluation handed in."""
        self._folding = Folding()

    def end_of_round(self, found: Sequence[Measures], *, drain: Drain, can_drain: Drain) -> Stepping[Drain]:
        """Hand in what this rank measured in a round of an evaluation; return how to stop, if at all."""
        mine = torch.cat((torch.tensor([drain, can_drain], dtype=torch.uint8), packed(found)))
        if self._link.rank:
            self._link.send(0, "measures", (mine,))
        result = yield from self._from_rank_0("end of round", self._fold_round(mine))
        return Drain(int(result))

    def _fold_round(self, mine: Tensor) -> Stepping[Tensor]:
        drain, can_drain = [], []
        for rank in self._ranks:  # so replicas come in order, and with them the micro-batches of a round
            part = yield from self._part(rank, "measures", mine)
            drain.append(int(part[0]))
            can_drain.append(int(part[1]))
            for measures in unpacked(part[2:]):
                self._folding.add(measures)
        return torch.tensor(_drain_of(drain, can_drain))

    def figures(self) -> Stepping[tuple[Figure, ...]]:
        """Return what all rounds come to, in order of micro-batch."""
        result = yield from self._from_rank_0("figures", self._fold_figures())
        return unpacked_figures(result)

    def _fold_figures(self) -> Stepping[Tensor]:
        yield PROGRESSED
        return packed_figures(self._folding.figures())

    def weights_sha256(self, digests: Sequence[bytes]) -> Stepping[str]:
        """Return the digest of the whole model from those of every stage's segments.

        Raises StepDiverged where two replicas of a stage do not hold equal bits.
        """
        mine = torch.frombuffer(bytearray(b"".join(digests)), dtype=torch.uint8)
        if self._link.rank:
            self._link.send(0, "digests", (mine,))
        result = yield from self._from_rank_0("digest", self._join(mine))
        return bytes(result.tolist()).hex()

    def _join(self, mine: Tensor) -> Stepping[Tensor]:
        stages: list[bytes] = []
        for rank in self._ranks:
            part = bytes((yield from self._part(rank, "digests", mine)).tolist())
            if rank < self._layout.stages:
                stages.append(part)
            elif part != stages[self._layout.stage_of(rank)]:
                raise StepDiverged(f"rank {rank} holds other weights than replica 0 of its stage")
        joined = b"".join(stages)
        digests = [joined[i : i + 32] for i in range(0, len(joined), 32)]
        return torch.tensor(list(bytes.fromhex(weights_sha256(digests))), dtype=torch.uint8)

    def _part(self, rank: int, tag: str, own: Tensor) -> Stepping[Tensor]:
        if rank == 0:
            return own
        (part,) = yield from receive(self._link, rank, tag)
        return part

    def _from_rank_0(self, tag: str, work: Stepping[Tensor]) -> Stepping[Tensor]:
        if self._link.rank:
            (result,) = yield from receive(self._link, 0, tag)
            return result
        result = yield from work
        for rank in self._ranks[1:]:
            self._link.send(rank, tag, (result,))
        return result


def _drain_of(wishes: Sequence[float], possible: Sequence[float]) -> float:
    """Return the strongest wish, or what all can do where that is more."""
    return max(*wishes, *possible) if max(wishes) else 0


def _joined(some: list[float], others: list[float]) -> list[float]:
    """Join partials of two replicas of a stage; of each block only one tells, so this rounds nothing."""
    return [a + b for a, b in zip(some, others, strict=True)] if some and others else some or others
