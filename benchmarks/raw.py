"""What plain blocking sockets reach where every rank sends to every other at once."""

import socket
from collections.abc import Callable
from threading import Thread

from benchmarks.joined import Joined

_CHUNK_BYTES = 1 << 19


def exchange(joined: Joined, num_bytes: int) -> Callable[[], None]:
    """Return what sends so many bytes to every other rank while as many come from each; all call it."""
    place = joined.place
    others = [rank for rank in range(place.size) if rank != place.rank]
    sending: list[socket.socket] = []
    with socket.create_server((place.host, 0), backlog=place.size) as listener:
        joined.store.set(f"raw {place.rank}", str(listener.getsockname()[1]))
        for rank in others:
            port = int(joined.store.get(f"raw {rank}"))
            sending.append(socket.create_connection((place.hosts[rank], port)))
        receiving = [listener.accept()[0] for _ in others]

    def run() -> None:
        threads = [Thread(target=_send, args=(sock, num_bytes)) for sock in sending]
        threads += [Thread(target=_receive, args=(sock, num_bytes)) for sock in receiving]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    return run


def _send(sock: socket.socket, num_bytes: int) -> None:
    chunk = memoryview(bytearray(_CHUNK_BYTES))
    for start in range(0, num_bytes, _CHUNK_BYTES):
        sock.sendall(chunk[: num_bytes - start])


def _receive(sock: socket.socket, num_bytes: int) -> None:
    chunk = memoryview(bytearray(_CHUNK_BYTES))
    left = num_bytes
    while left > 0:
        left -= sock.recv_into(chunk[:left])
