"""From sums of a step to `.grad`: tied uses joined, divided once by the total weight, clipped."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from varuna_runtime.spec.model import TiedParameter, TiedUse
from varuna_runtime.worker.accumulate import Space
from varuna_runtime.worker.norm import block_partials
from varuna_runtime.worker.reduce import Sum
from varuna_runtime.worker.ties import UseSum


@dataclass(slots=True)
class SpaceGradients:
    """Where the final gradients of one space live; kept from step to step."""

    space: Space
    parameters: tuple[nn.Parameter, ...]
    flat: Tensor
    views: tuple[Tensor, ...]

    def index(self, use: TiedUse) -> int | None:
        """Return the place of a tied use in this space."""
        if use.segment != self.space.segment or use.name not in self.space.names:
            return None
        return self.space.names.index(use.name)


def space_gradients(space: Space, parameters: Sequence[nn.Parameter]) -> SpaceGradients:
    """Allocate the gradients of a space; `parameters` are all trainable ones of its segment."""
    owned = tuple(parameters[p] for p in space.positions)
    device = owned[0].device
    flat = torch.empty(space.offsets[-1], dtype=space.dtype, device=device)
    return SpaceGradients(space, owned, flat, space.views(flat))


class StageGradients:
    """The gradients of every space of a stage."""

    def __init__(self, spaces: Sequence[SpaceGradients], ties: Sequence[TiedParameter]) -> None:
        self._spaces = spaces
        self._places = {
            tie: [(use, *place) for use in tie.uses if (place := self._place(use))] for tie in ties
        }
        # A tied parameter counts once in the norm, under its first use.
        self._copies: dict[int, set[str]] = {}
        for use in (use for tie in ties for use in tie.uses[1:]):
            self._copies.setdefault(use.segment, set()).add(use.name)

    def use_sums(self, sums: Sequence[Sum]) -> dict[TiedUse, UseSum]:
        """Return the sums of this stage's tied uses."""
        return {
            use: UseSum(self._spaces[s].space.views(sums[s].flat)[i], sums[s].touched[i : i + 1])
            for places in self._places.values()
            for use, s, i in places
        }

    def assign(
        self, sums: Sequence[Sum], totals: Mapping[TiedParameter, UseSum], weight: float
    ) -> tuple[float, ...]:
        """Set every `.grad`, None where no micro-batch gave one; return the norm's partials in order."""
        for place, total in zip(self._spaces, sums, strict=True):
            torch.div(total.flat, weight, out=place.flat)
            for parameter, view, touched in zip(
                place.parameters, place.views, total.touched.tolist(), strict=True
            ):
                parameter.grad = view if touched else None
        for tie, joined in totals.items():
            _, s, i = self._places[tie][0]
            view = torch.div(joined.value, weight, out=self._spaces[s].views[i])
            self._spaces[s].parameters[i].grad = view if joined.touched else None
        return self._partials()

    def scale(self, factor: float) -> None:
        """Multiply every gradient; for clipping."""
        for place in self._spaces:
            place.flat.mul_(factor)

    def _partials(self) -> tuple[float, ...]:
        found = [
            partial
            for place in self._spaces
            for partial in block_partials(
                place.space, place.flat, skip=self._copies.get(place.space.segment, ())
            )
        ]
        return tuple(torch.stack(found).tolist()) if found else ()

    def _place(self, use: TiedUse) -> tuple[int, int] | None:
        for s, place in enumerate(self._spaces):
            if (i := place.index(use)) is not None:
                return s, i
        return None
