"""What every rank of a comparison needs: one store, gloo for the peer, our link, and a timed message."""

import os
import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import median

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.distributed_c10d import PrefixStore, Store

from benchmarks.ours import link_of
from benchmarks.testbed import Place
from varuna_runtime.worker.link import Link

_TIMED_MESSAGES = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """A rank that has met the others."""

    place: Place
    store: Store
    link: Link

    @classmethod
    def at(cls, place: Place) -> "Joined":
        """Meet the other ranks; the peer's default process group is then there, and so is our link."""
        os.environ["GLOO_SOCKET_IFNAME"] = place.interface
        torch.set_num_threads(1)
        store = TCPStore(place.hosts[0], place.port, place.size, is_master=place.rank == 0)
        peer_store = PrefixStore("peer", store)
        dist.init_process_group("gloo", store=peer_store, rank=place.rank, world_size=place.size)
        return cls(place=place, store=store, link=link_of(place, store))


def timed_message(joined: Joined, num_bytes: int) -> Callable[[int], float]:
    """Return a runner that sends messages from rank 0 to rank 1 and returns their median time, on rank 1."""
    if joined.place.rank > 1:
        return lambda _: 0.0
    connection = connected(joined)

    def run(_: int) -> float:
        return median(_send_one(connection, joined.place.rank, num_bytes) for _ in range(_TIMED_MESSAGES))

    return run


def connected(joined: Joined) -> socket.socket:
    """Return a connection between ranks 0 and 1, which both call this."""
    place = joined.place
    if place.rank == 0:
        with socket.create_server((place.host, 0)) as listener:
            joined.store.set("connection", str(listener.getsockname()[1]))
            connection, _ = listener.accept()
    else:
        port = int(joined.store.get("connection"))
        connection = socket.create_connection((place.hosts[0], port))
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def _send_one(connection: socket.socket, rank: int, num_bytes: int) -> float:
    """Send a message with the time it left; the clock is the same in all namespaces."""
    if rank == 0:
        stamp = f"{time.monotonic():20.9f}".encode()
        connection.sendall(stamp + bytes(num_bytes - len(stamp)))
        connection.recv(1)
        return 0.0
    received = bytearray()
    while len(received) < num_bytes:
        received += connection.recv(1 << 20)
    arrived_s = time.monotonic()
    connection.sendall(b"!")
    return arrived_s - float(received[:20])
