"""A wire between two ends of a TCP connection that can be cut, stalled or damaged at a byte."""

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator

Change = Callable[[bytes], bytes]
"""What passes -> what arrives."""


def _same(passing: bytes) -> bytes:
    return passing


@contextlib.contextmanager
def relay(port: int, *, back: Change = _same, forth: Change = _same) -> Iterator[int]:
    """Give a port that leads one connection to `port`; `back` is what comes from there."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        pumps: list[threading.Thread] = []

        def accept() -> None:
            ours, _ = listener.accept()
            theirs = socket.create_connection(("127.0.0.1", port))
            for source, target, change in ((ours, theirs, forth), (theirs, ours, back)):
                pumps.append(threading.Thread(target=_pump, args=(source, target, change)))
                pumps[-1].start()

        accepting = threading.Thread(target=accept)
        accepting.start()
        yield listener.getsockname()[1]
        accepting.join(10)
        for pump in pumps:
            pump.join(10)


def at_byte(number: int, act: Callable[[bytearray, int], None]) -> Change:
    """Call `act` with the bytes that pass and the place in them when byte `number` comes."""
    passed = 0

    def change(passing: bytes) -> bytes:
        nonlocal passed
        changed = bytearray(passing)
        if passed <= number < passed + len(passing):
            act(changed, number - passed)
        passed += len(passing)
        return bytes(changed)

    return change


def _pump(source: socket.socket, target: socket.socket, change: Change) -> None:
    with contextlib.suppress(OSError):
        while passing := source.recv(1 << 16):
            target.sendall(change(passing))
    for sock in (source, target):
        with contextlib.suppress(OSError):
            sock.shutdown(socket.SHUT_RDWR)
    source.close()
