"""From sums of a step to `.grad`: tied uses joined, divided once by the total weight, clipped.

A rank that shares the optimizer with other replicas does so for the elements it owns.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from varuna_runtime.spec.model import TiedParameter, TiedUse
from varuna_runtime.worker.accumulate import Piece, Space
from varuna_runtime.worker.norm import NormOrder
from varuna_runtime.worker.reduce import Sum
from varuna_runtime.worker.shares import OwnedSpace, Shares
from varuna_runtime.worker.ties import UseSum


@dataclass(frozen=True, slots=True, kw_only=True)
class SpaceGradients:
    """Where the final gradients of what this rank owns of one space live; kept from step to step."""

    space: Space
    pieces: tuple[Piece, ...]
    stepped: tuple[nn.Parameter, ...]  # by piece: the parameter, or a flat slice of it
    flat: Tensor
    views: tuple[Tensor, ...]  # by piece


def space_gradients(owned: OwnedSpace, shares: Shares) -> SpaceGradients:
    """Allocate the gradients of this rank's shares of a space."""
    space = owned.space
    held = [(shares[p].piece, shares[p].place, i) for i, p in enumerate(owned.parameters) if p in shares]
    pieces = [Piece(i, piece.start, piece.stop) for piece, _, i in held]
    stepped = [place for _, place, _ in held]
    sizes = [place.numel() for place in stepped]
    flat = torch.empty(sum(sizes), dtype=space.dtype, device=owned.parameters[0].device)
    views = zip(torch.split(flat, sizes), stepped, strict=True) if sizes else ()
    return SpaceGradients(
        space=space,
        pieces=tuple(pieces),
        stepped=tuple(stepped),
        flat=flat,
        views=tuple(view.view(place.shape) for view, place in views),
    )


class StageGradients:
    """The gradients of every space of a stage."""

    def __init__(self, spaces: Sequence[SpaceGradients], ties: Sequence[TiedParameter]) -> None:
        self._spaces = spaces
        self._of_tie = {
            tie: [(use, s) for use in tie.uses if (s := self._place(use)) is not None] for tie in ties
        }
        self._tied = {s for places in self._of_tie.values() for _, s in places}
        copies = {use for tie in ties for use in tie.uses[1:]}  # counted under the first use
        self._order = NormOrder([place.space for place in spaces], copies)
        self._squares: dict[int, Tensor] = {}  # of the running step so far

    def use_sums(self, sums: Sequence[Sum]) -> dict[TiedUse, UseSum]:
        """Return the sums of this stage's tied uses, each of which is alone in its space."""
        return {
            use: UseSum(sums[s].flat, sums[s].touched)
            for places in self._of_tie.values()
            for use, s in places
        }

    def assign(self, at: int, total: Sum, weight: float) -> None:
        """Set the `.grad`s of one space, None where no micro-batch gave one; tied ones wait for `join`."""
        if at not in self._tied:
            self._assign(self._spaces[at], total.flat, total.touched, weight)

    def join(self, totals: Mapping[TiedParameter, UseSum], weight: float) -> None:
        """Set the `.grad` of every tied parameter."""
        for tie, joined in totals.items():
            self._assign(self._spaces[self._of_tie[tie][0][1]], joined.value, joined.touched, weight)

    def partials(self) -> tuple[float, ...]:
        """Return the norm's partials in canonical order; call it once all is assigned."""
        squares, self._squares = self._squares, {}
        return self._order.partials(squares)

    def scale(self, factor: float) -> None:
        """Multiply every gradient; for clipping."""
        for place in self._spaces:
            place.flat.mul_(factor)

    def _place(self, use: TiedUse) -> int | None:
        for s, place in enumerate(self._spaces):
            if use.segment == place.space.segment and use.name in place.space.names:
                return s
        return None

    def _assign(self, place: SpaceGradients, flat: Tensor, touched: Tensor, weight: float) -> None:
        torch.div(flat, weight, out=place.flat)
        is_touched = touched.tolist()
        for piece, parameter, view in zip(place.pieces, place.stepped, place.views, strict=True):
            parameter.grad = view if is_touched[piece.index] else None
        self._squares |= self._order.squares(place.space, place.pieces, place.views)
