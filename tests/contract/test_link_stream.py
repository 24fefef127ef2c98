"""One connection of a link without its threads: both ends are moved by the test."""

import socket
from collections.abc import Iterator

import pytest
import torch

from varuna_runtime.worker.link.frames import GOODBYE, Kind
from varuna_runtime.worker.link.stream import Arrival, Stream

Ends = tuple[Stream, Stream]
BULK = torch.arange(1 << 20)  # 8 MB: more than such a socket holds


@pytest.fixture
def ends() -> Iterator[Ends]:
    first, second = socket.socketpair()
    with first, second:
        first.setblocking(False)
        second.setblocking(False)
        yield Stream(first), Stream(second)


def moved(ends: Ends) -> list[Arrival]:
    """Everything that arrives when both ends are moved until the sender has nothing left."""
    arrived: list[Arrival] = []
    while ends[0].has_backlog:
        ends[0].push()
        arrived += ends[1].pull()
    return arrived + list(ends[1].pull())


def test_a_sender_keeps_what_the_socket_does_not_take(ends: Ends) -> None:
    ends[0].queue("bulk", (BULK,))
    ends[0].push()
    assert ends[0].has_backlog
    assert not list(ends[1].pull())
    assert ends[1].is_receiving
    (arrival,) = moved(ends)
    assert arrival.tensors[0].equal(BULK)
    assert not ends[1].is_receiving


def test_forgetting_what_is_queued_keeps_the_message_under_way_whole(ends: Ends) -> None:
    ends[0].queue("bulk", (BULK,))
    ends[0].queue("dropped", (BULK,))
    ends[0].push()
    ends[0].queue("dropped", ())
    ends[0].forget_queued()
    ends[0].queue("", (), Kind.GOODBYE)
    bulk, goodbye = moved(ends)
    assert (bulk.description.tag, bulk.tensors[0].equal(BULK)) == ("bulk", True)
    assert goodbye.description == GOODBYE


def test_forgetting_what_is_queued_drops_all_of_it_when_nothing_is_under_way(ends: Ends) -> None:
    ends[0].queue("dropped", (BULK,))
    ends[0].forget_queued()
    assert not ends[0].has_backlog
    assert moved(ends) == []


def test_what_was_sent_before_the_end_arrives_before_it(ends: Ends) -> None:
    ends[0].queue("last", (torch.tensor(1),))
    ends[0].push()
    ends[0].shut()
    assert [arrival.description.tag for arrival in ends[1].pull()] == ["last"]
    with pytest.raises(ConnectionError, match="closed the connection"):
        list(ends[1].pull())


def test_words_of_another_protocol_are_an_error(ends: Ends) -> None:
    ends[0].sock.send(b"\xff" * 64)
    with pytest.raises(ValueError, match="a message header"):
        list(ends[1].pull())
