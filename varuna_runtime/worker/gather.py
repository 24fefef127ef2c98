"""After a sharded optimizer's step: every replica of a stage gets the parameters the others stepped."""

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from varuna_runtime.worker.reduce import Team
from varuna_runtime.worker.shares import OwnedSpace
from varuna_runtime.worker.signals import PROGRESSED, Stepping, receive

_TAG = "parameters"


class _Part(NamedTuple):
    """Flat elements [start, stop) of a parameter, in the order of its dimensions, whatever its strides."""

    parameter: nn.Parameter
    start: int
    stop: int

    def value(self) -> Tensor:
        return self.parameter.detach().reshape(-1)[self.start : self.stop]

    def fill(self, value: Tensor) -> None:
        whole = self.parameter.detach().reshape(-1)  # a copy where the parameter is not contiguous
        whole[self.start : self.stop].copy_(value)
        if not self.parameter.is_contiguous():
            self.parameter.copy_(whole.view(self.parameter.shape))


class ParameterGather:
    """One rank's part in the gathers of its stage."""

    def __init__(self, owned: Sequence[OwnedSpace], replicas: int) -> None:
        """Take every space of the stage, the same on every replica."""
        self._messages = [[m for each in owned for m in _messages(each, owner)] for owner in range(replicas)]

    def run(self, team: Team) -> Stepping[None]:
        """Send what this rank stepped and fill in the rest; bits are copied, never rounded."""
        for message in self._messages[team.replica]:
            values = tuple(part.value() for part in message)
            for _, rank in team.others:
                team.link.send(rank, _TAG, values)
        for replica, rank in team.others:
            for message in self._messages[replica]:
                _fill(message, (yield from receive(team.link, rank, _TAG)))
                yield PROGRESSED


def _messages(owned: OwnedSpace, owner: int) -> list[tuple[_Part, ...]]:
    """Return what `owner` sends of a space, a bucket at a time."""
    return [
        tuple(_Part(owned.parameters[p.index], p.start, p.stop) for p in owned.space.pieces(bucket))
        for bucket in owned.space.buckets(owned.ranges[owner])
    ]


def _fill(mine: tuple[_Part, ...], theirs: tuple[Tensor, ...]) -> None:
    with torch.no_grad():
        for part, value in zip(mine, theirs, strict=True):
            part.fill(value)
