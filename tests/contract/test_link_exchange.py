"""Exchanges that made other systems hang, on our own connections: both directions, all sizes, any order."""

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import Tensor

from varuna_runtime.spec.errors import PeerFailed, PeerLost
from varuna_runtime.spec.generation import Cause, Fault
from varuna_runtime.worker.link.handshake import Identity
from varuna_runtime.worker.link.meeting import meet
from varuna_runtime.worker.link.sockets import listen
from varuna_runtime.worker.link.tcp import TcpLink

MEGABYTE = 1 << 20
Side = Callable[[TcpLink, int], None]


def mesh(world_size: int, vanishing: int | None = None) -> list[TcpLink]:
    """Ranks of this process, each connected with its neighbours only; one may vanish once they have met."""
    listeners = [listen("127.0.0.1") for _ in range(world_size)]
    addresses = {rank: ("127.0.0.1", sock.getsockname()[1]) for rank, sock in enumerate(listeners)}

    def join(rank: int) -> TcpLink | None:
        me = Identity(job="j", generation=1, rank=rank, secret="s")
        peers = {rank - 1, rank + 1} & set(range(world_size))
        connections = meet(me, listeners[rank], addresses, peers, timeout_s=60.0)
        if rank != vanishing:
            return TcpLink(rank, connections)
        for sock in connections.values():
            sock.close()
        return None

    with ThreadPoolExecutor(world_size) as pool:
        return [link for link in pool.map(join, range(world_size)) if link is not None]


def close_all(links: list[TcpLink]) -> None:
    with ThreadPoolExecutor(len(links)) as pool:
        list(pool.map(TcpLink.close, links))


@pytest.fixture
def pair() -> Iterator[list[TcpLink]]:
    links = mesh(2)
    yield links
    close_all(links)


def awaited(link: TcpLink, source: int, tag: str) -> tuple[Tensor, ...]:
    while (message := link.poll(source, tag)) is None:
        link.wait()
    return message


def both(links: list[TcpLink], side: Side) -> None:
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(side, links, (1, 0)))


@pytest.mark.parametrize(("size", "rounds"), [(2 * MEGABYTE, 200), (8 * MEGABYTE, 25)])
def test_both_ends_send_and_receive_at_once_round_after_round(
    pair: list[TcpLink], size: int, rounds: int
) -> None:
    """8 MB is more than the kernel holds on both sides together."""

    def side(link: TcpLink, peer: int) -> None:
        mine = torch.zeros(size, dtype=torch.uint8)
        for count in range(rounds):
            value = (2 * count + link.rank) % 256
            mine = torch.full_like(mine, value)
            link.send(peer, "t", (mine,))
            (theirs,) = awaited(link, peer, "t")
            assert theirs[0] == theirs[-1] == (2 * count + peer) % 256

    both(pair, side)


def test_everything_may_be_sent_before_anything_is_received(pair: list[TcpLink]) -> None:
    def side(link: TcpLink, peer: int) -> None:
        for value in range(8):
            link.send(peer, "bulk", (torch.full((2 * MEGABYTE,), float(value)),))
        assert [float(awaited(link, peer, "bulk")[0][-1]) for _ in range(8)] == list(range(8))

    both(pair, side)


@pytest.mark.parametrize("first", [0, 1])
def test_directions_and_sizes_take_turns(pair: list[TcpLink], first: int) -> None:
    sizes = [1, 3 * MEGABYTE, 17, 64 << 10, (64 << 10) + 1, 5 * MEGABYTE, 0, 2]

    def side(link: TcpLink, peer: int) -> None:
        for count, size in enumerate(sizes * 3):
            if (count + first) % 2 == link.rank:
                link.send(peer, "t", (torch.full((size,), count, dtype=torch.uint8), torch.tensor(count)))
            else:
                values, number = awaited(link, peer, "t")
                assert (values.numel(), int(number)) == (size, count)
                assert bool((values == count).all())

    both(pair, side)


def test_bulk_arrives_while_the_receiver_looks_elsewhere(pair: list[TcpLink]) -> None:
    """The helper moves what the kernel cannot hold; nobody waits on the sending side."""
    bulk = torch.arange(4 * MEGABYTE)  # 32 MB
    pair[0].send(1, "bulk", (bulk,))
    assert awaited(pair[1], 0, "bulk")[0].equal(bulk)


def test_a_lost_rank_is_known_to_ranks_that_have_no_connection_with_it() -> None:
    links = mesh(4, vanishing=3)
    for link in links:
        with pytest.raises(PeerLost, match="rank 3 is gone: "):
            awaited(link, link.rank + 1, "t")
    close_all(links)


def test_the_word_of_a_failure_overtakes_what_is_queued_but_not_the_message_under_way(
    pair: list[TcpLink],
) -> None:
    for _ in range(3):
        pair[0].send(1, "bulk", (torch.zeros(16 * MEGABYTE, dtype=torch.uint8),))
    fault = Fault(rank=0, cause=Cause.USER_ERROR, message="ValueError: boom")
    with ThreadPoolExecutor(1) as pool:
        aborting = pool.submit(pair[0].abort, fault)
        with pytest.raises(PeerFailed) as failed:
            awaited(pair[1], 0, "another")
        assert failed.value.fault == fault
        pair[1].close()
        aborting.result()


def test_a_message_is_received_once_however_it_is_cut(pair: list[TcpLink]) -> None:
    """Headers, small bodies and large ones in a row fall apart at all places in the receiver's reads."""
    tensors = [torch.arange(n) for n in (0, 1, 5000, 8191, 8192, 8193, 70000, 2)]

    def side(link: TcpLink, peer: int) -> None:
        for start in range(len(tensors)):
            link.send(peer, "t", tuple(tensors[start:]))
        for start in range(len(tensors)):
            for got, sent in zip(awaited(link, peer, "t"), tensors[start:], strict=True):
                assert got.equal(sent)

    both(pair, side)


def test_a_header_longer_than_what_is_read_ahead_arrives(pair: list[TcpLink]) -> None:
    many = tuple(torch.tensor([[[float(i)]]]) for i in range(5000))
    pair[0].send(1, "many", many)
    pair[0].send(1, "after", (torch.tensor(1),))
    assert [float(t) for t in awaited(pair[1], 0, "many")] == list(range(5000))
    assert int(awaited(pair[1], 0, "after")[0]) == 1


def test_messages_are_answered_while_the_rank_computes(pair: list[TcpLink]) -> None:
    first, second = pair
    answered = threading.Event()

    def answer() -> None:
        if answered.is_set():
            return  # the first says goodbye at the end, which is news too
        if (message := second.poll(0, "question")) is not None:
            second.send(0, "answer", tuple(2 * t for t in message))
            answered.set()

    second.meanwhile(answer)
    first.send(1, "question", (torch.ones(MEGABYTE),))
    assert answered.wait(60), "its rank never looks"
    (doubled,) = awaited(first, 1, "answer")
    assert doubled.equal(torch.full((MEGABYTE,), 2.0))
