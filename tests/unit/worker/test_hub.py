"""What can wait lets everything else go first."""

import socket
from collections.abc import Iterator

import pytest
import torch

from varuna_runtime.worker.link.frames import Kind
from varuna_runtime.worker.link.hub import Hub, News
from varuna_runtime.worker.link.stream import Arrival

MORE_THAN_SOCKETS_HOLD = torch.zeros(64 << 20, dtype=torch.uint8)
SMALL = torch.zeros(1)


def connected() -> tuple[socket.socket, socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        mine = socket.create_connection(listener.getsockname())
        theirs, _ = listener.accept()
    return mine, theirs


class Rank:
    """A hub with two peers, each a hub in the hands of the test."""

    def __init__(self) -> None:
        (near, there), (close, away) = connected(), connected()
        self.hub = Hub({1: near, 2: close})
        self.peers = {1: Hub({0: there}), 2: Hub({0: away})}

    def heard_by(self, peer: int) -> list[str]:
        """Tags of what has come to a peer once nothing more does."""
        found: list[News] = []
        quiet = 0
        while quiet < 3:
            list(self.hub.move(0.01))
            news = [one for _, one in self.peers[peer].move(0.01)]
            found += news
            quiet = 0 if news or self.peers[peer].is_busy else quiet + 1
        return [one.description.tag for one in found if isinstance(one, Arrival)]

    def close(self) -> None:
        for hub in (self.hub, *self.peers.values()):
            hub.close()


@pytest.fixture
def rank() -> Iterator[Rank]:
    found = Rank()
    yield found
    found.close()


def test_what_can_wait_goes_once_what_cannot_has_arrived(rank: Rank) -> None:
    rank.hub.send(1, "activations", (MORE_THAN_SOCKETS_HOLD,))
    rank.hub.send(2, "gradients", (SMALL,), can_wait=True)
    assert rank.heard_by(2) == []
    assert rank.hub.has_backlog
    assert rank.heard_by(1) == ["activations"]
    assert rank.heard_by(2) == ["gradients"]
    assert not rank.hub.has_backlog


def test_what_cannot_wait_waits_for_nothing(rank: Rank) -> None:
    rank.hub.send(1, "activations", (MORE_THAN_SOCKETS_HOLD,))
    rank.hub.send(2, "gradients", (SMALL,), can_wait=True)
    rank.hub.send(2, "vote", (SMALL,))
    assert rank.heard_by(2) == ["vote"]


def test_what_can_wait_keeps_its_order_and_waits_for_no_other_of_its_kind(rank: Rank) -> None:
    rank.hub.send(1, "gradients", (MORE_THAN_SOCKETS_HOLD,), can_wait=True)
    for tag in ("gradients", "sum"):
        rank.hub.send(2, tag, (SMALL,), can_wait=True)
    assert rank.heard_by(2) == ["gradients", "sum"]


def test_it_does_not_wait_for_one_that_is_behind_another_of_its_kind(rank: Rank) -> None:
    rank.hub.send(1, "gradients", (MORE_THAN_SOCKETS_HOLD,), can_wait=True)
    rank.hub.send(1, "vote", (SMALL,))
    rank.hub.send(2, "gradients", (SMALL,), can_wait=True)
    assert rank.heard_by(2) == ["gradients"]
    assert rank.heard_by(1) == ["gradients", "vote"]


def test_it_does_not_wait_for_a_peer_that_has_gone(rank: Rank) -> None:
    rank.hub.send(1, "activations", (MORE_THAN_SOCKETS_HOLD,))
    rank.hub.send(2, "gradients", (SMALL,), can_wait=True)
    rank.peers[1].close()
    assert rank.heard_by(2) == ["gradients"]


def test_goodbyes_come_last(rank: Rank) -> None:
    rank.hub.send(1, "activations", (MORE_THAN_SOCKETS_HOLD,))
    rank.hub.send(2, "gradients", (SMALL,), can_wait=True)
    rank.hub.send_all()
    rank.hub.send(2, "", (), Kind.GOODBYE)
    assert rank.heard_by(2) == ["gradients", ""]


def test_what_waits_is_forgotten_with_what_is_queued(rank: Rank) -> None:
    rank.hub.send(1, "activations", (MORE_THAN_SOCKETS_HOLD,))
    rank.hub.send(2, "gradients", (SMALL,), can_wait=True)
    rank.hub.forget_queued()
    assert rank.heard_by(1) == ["activations"]
    assert rank.heard_by(2) == []
