"""Ranks that connect with each other while others knock: real sockets on loopback."""

import socket
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack

import pytest
import torch

from varuna_runtime.spec.errors import PeerLost
from varuna_runtime.worker.link.handshake import ANSWER_BYTES, HELLO_BYTES, Identity, offer
from varuna_runtime.worker.link.meeting import MAX_UNPROVEN, Address, DidNotMeet
from varuna_runtime.worker.link.sockets import listen
from varuna_runtime.worker.link.tcp import TcpLink

HOST = "127.0.0.1"


def me(rank: int, *, secret: str = "s", generation: int = 1) -> Identity:
    return Identity(job="j", generation=generation, rank=rank, secret=secret)


class Ports:
    """A listener for each rank but the first."""

    def __init__(self, world_size: int) -> None:
        self.listeners = {rank: listen(HOST) for rank in range(1, world_size)}
        self.addresses: dict[int, Address] = {
            rank: (HOST, sock.getsockname()[1]) for rank, sock in self.listeners.items()
        }

    def join(self, who: Identity, peers: set[int], timeout_s: float = 60.0) -> TcpLink:
        listener = self.listeners.get(who.rank)
        return TcpLink.join(who, listener, self.addresses, peers, timeout_s=timeout_s)


def close_all(links: list[TcpLink]) -> None:
    with ThreadPoolExecutor(len(links)) as pool:
        list(pool.map(TcpLink.close, links))


def knock(address: Address, words: bytes) -> socket.socket:
    sock = socket.create_connection(address)
    sock.sendall(words)
    return sock


def is_dropped(sock: socket.socket) -> bool:
    sock.settimeout(30.0)
    try:
        while sock.recv(ANSWER_BYTES):
            continue
    except ConnectionError:
        pass
    return True


@pytest.fixture
def ports() -> Iterator[Ports]:
    made = Ports(4)
    yield made
    for listener in made.listeners.values():
        listener.close()


def test_every_pair_of_four_ranks_connects_whoever_comes_first(ports: Ports) -> None:
    everyone = set(range(4))
    with ThreadPoolExecutor(4) as pool:
        links = list(pool.map(lambda r: ports.join(me(r), everyone - {r}), range(4)))
    for source in links:
        for to in everyone - {source.rank}:
            source.send(to, "t", (torch.tensor([source.rank, to]),))
    for link in links:
        for source_rank in everyone - {link.rank}:
            while (message := link.poll(source_rank, "t")) is None:
                link.wait()
            assert message[0].tolist() == [source_rank, link.rank]
    close_all(links)


def test_strangers_and_stale_ranks_do_no_harm_to_the_ranks_that_meet(ports: Ports) -> None:
    address = ports.addresses[1]
    stale = next(offer(me(0, generation=7), 1, bytes(32))).send
    without_secret = next(offer(me(0, secret="other"), 1, bytes(32))).send
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        for words in (b"", b"G", b"GET / HTTP/1.1\r\n" * 9, stale, without_secret):
            stack.enter_context(knock(address, words))
        replayed = stack.enter_context(knock(address, without_secret + bytes(32)))
        links = list(pool.map(lambda r: ports.join(me(r), {1 - r}), range(2)))
        assert is_dropped(replayed)
    links[0].send(1, "t", (torch.tensor(5),))
    while (message := links[1].poll(0, "t")) is None:
        links[1].wait()
    assert int(message[0]) == 5
    close_all(links)


def test_more_silent_strangers_than_there_is_room_for_do_not_keep_a_rank_out(ports: Ports) -> None:
    with ExitStack() as stack, ThreadPoolExecutor(2) as pool:
        for _ in range(MAX_UNPROVEN + 5):
            stack.enter_context(knock(ports.addresses[1], b"x" * (HELLO_BYTES - 1)))
        close_all(list(pool.map(lambda r: ports.join(me(r), {1 - r}), range(2))))


def test_a_peer_that_does_not_come_is_named(ports: Ports) -> None:
    with pytest.raises(DidNotMeet, match="rank 0 did not come: it did not connect") as absent:
        ports.join(me(2), {0, 3}, timeout_s=0.2)
    assert "rank 3 did not come: 127.0.0.1:" in str(absent.value)


def test_a_peer_whose_name_cannot_be_looked_up_is_named(
    ports: Ports, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unknown(*_: object) -> int:
        raise socket.gaierror(socket.EAI_AGAIN, "Temporary failure in name resolution")

    monkeypatch.setattr(socket.socket, "connect_ex", unknown)
    with pytest.raises(DidNotMeet, match="Temporary failure in name resolution"):
        ports.join(me(2), {3}, timeout_s=0.2)


def test_a_peer_whose_port_is_closed_is_lost_at_once(ports: Ports) -> None:
    ports.listeners[3].close()
    with pytest.raises(PeerLost, match="rank 3 is gone: nothing listens"):
        ports.join(me(2), {3})


def test_who_listens_for_a_peer_without_the_secret_is_no_peer(ports: Ports) -> None:
    with ThreadPoolExecutor(2) as pool:
        secrets = ["s", "other"]
        joins = [pool.submit(ports.join, me(r, secret=secrets[r]), {1 - r}, 1.0) for r in range(2)]
        with pytest.raises(DidNotMeet, match="rank 1 did not come: what listens for rank 1 does not know"):
            joins[0].result()
        with pytest.raises(DidNotMeet, match="rank 0 did not come"):
            joins[1].result()
