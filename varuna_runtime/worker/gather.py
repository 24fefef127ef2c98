"""After a sharded optimizer's step: every replica of a stage gets the parameters the others stepped."""

from collections.abc import Sequence

import torch
from torch import Tensor

from varuna_runtime.worker.reduce import Team
from varuna_runtime.worker.shares import OwnedSpace
from varuna_runtime.worker.signals import PROGRESSED, Stepping, receive

_TAG = "parameters"


class ParameterGather:
    """One rank's part in the gathers of its stage."""

    def __init__(self, owned: Sequence[OwnedSpace], replicas: int) -> None:
        """Take every space of the stage, the same on every replica."""
        self._messages = [[m for each in owned for m in _messages(each, owner)] for owner in range(replicas)]

    def run(self, team: Team) -> Stepping[None]:
        """Send what this rank stepped and fill in the rest; bits are copied, never rounded."""
        for message in self._messages[team.replica]:
            for _, rank in team.others:
                team.link.send(rank, _TAG, message)
        for replica, rank in team.others:
            for message in self._messages[replica]:
                _fill(message, (yield from receive(team.link, rank, _TAG)))
                yield PROGRESSED


def _messages(owned: OwnedSpace, owner: int) -> list[tuple[Tensor, ...]]:
    """Return what `owner` sends of a space: views into the parameters, a bucket at a time."""
    return [
        tuple(
            owned.parameters[piece.index].detach().view(-1)[piece.start : piece.stop]
            for piece in owned.space.pieces(bucket)
        )
        for bucket in owned.space.buckets(owned.ranges[owner])
    ]


def _fill(mine: tuple[Tensor, ...], theirs: tuple[Tensor, ...]) -> None:
    with torch.no_grad():
        for part, value in zip(mine, theirs, strict=True):
            part.copy_(value)
