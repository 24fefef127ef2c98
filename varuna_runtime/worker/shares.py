"""What one rank steps of each parameter, and where: all of it, a share among replicas, on the host or not."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.optim import ASGD, SGD, Adadelta, Adagrad, Adam, Adamax, AdamW, NAdam, RAdam, RMSprop, Rprop

from varuna_runtime.worker.accumulate import Piece, Space

ELEMENTWISE = (SGD, Adam, AdamW, NAdam, RAdam, Adamax, Adagrad, Adadelta, RMSprop, ASGD, Rprop)
"""Optimizers that step a slice of a parameter as they step the whole; any other one gets whole parameters."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Offload:
    """Memory of the host for the optimizer of a device: gradients go there, weights come back."""

    twin: Callable[[Tensor], Tensor]  # an uninitialised tensor of the host, shaped alike
    arrived: Callable[[], None]  # blocks until what was copied to twins is there


def offload_of(device: torch.device) -> Offload | None:
    """Return pinned memory for a GPU; None where the device is the host."""
    if device.type != "cuda":
        return None
    return Offload(
        twin=lambda tensor: torch.empty_like(tensor, device="cpu", pin_memory=True),
        arrived=lambda: torch.cuda.current_stream(device).synchronize(),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedSpace:
    """A space with its parameters, and the elements that each replica sums up and, if shared, steps."""

    space: Space
    parameters: tuple[nn.Parameter, ...]
    ranges: tuple[slice, ...]  # by replica


@dataclass(frozen=True, slots=True, kw_only=True)
class Share:
    """What this rank steps of one parameter."""

    piece: Piece
    place: nn.Parameter  # the parameter itself, or a flat slice of it in the same memory


Shares = Mapping[nn.Parameter, Share]


def shares_of(owned: Sequence[OwnedSpace], replica: int | None) -> Shares:
    """Return what `replica` steps, everything for None; parameters without a share are left out.

    A parameter tied inside the stage is in several spaces, alone and so cut alike: it has one share.
    """
    found: dict[nn.Parameter, Share] = {}
    for each in owned:
        every = slice(0, each.space.offsets[-1])
        for piece in each.space.pieces(every if replica is None else each.ranges[replica]):
            parameter = each.parameters[piece.index]
            if parameter not in found:
                found[parameter] = Share(piece=piece, place=_part(parameter, piece))
    return found


def _part(parameter: nn.Parameter, piece: Piece) -> nn.Parameter:
    if piece.stop - piece.start == parameter.numel():
        return parameter
    return nn.Parameter(parameter.detach().view(-1)[piece.start : piece.stop])


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """One parameter as the optimizer of this rank has it."""

    name: str
    shape: torch.Size  # of the whole parameter
    place: nn.Parameter  # where gradient and result are: the parameter, or a flat slice of it
    stepped: nn.Parameter  # what the optimizer holds: `place`, or its twin on the host
    start: int = 0  # first element of a slice
    is_alone: bool = False  # no other replica holds this state

    @property
    def is_slice(self) -> bool:
        """Whether `place` is less than the parameter."""
        return self.place.numel() < self.shape.numel()

    @property
    def elements(self) -> range:
        """Flat elements of the parameter that are stepped here."""
        return range(self.start, self.start + self.place.numel())
