"""A network between agents and their manager that can be cut: a TCP relay on loopback."""

import contextlib
import socket
import threading
from collections.abc import Callable

_CHUNK = 1 << 16


class Relay:
    """Carries every connection to `upstream()`, a HOST:PORT; a context manager."""

    def __init__(self, upstream: Callable[[], str]) -> None:
        self._upstream = upstream
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(0.2)
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._threads: list[threading.Thread] = []
        self._is_cut = False
        self._is_over = False

    @property
    def address(self) -> str:
        """HOST:PORT that agents dial."""
        host, port = self._listener.getsockname()
        return f"{host}:{port}"

    def __enter__(self) -> "Relay":
        self._start(self._accept)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self.cut()
        for thread in self._threads:
            thread.join()
        self._listener.close()

    def cut(self) -> None:
        """Break every connection, and each new one as soon as it is made."""
        with self._lock:
            self._is_cut = True
            for end in self._open:
                _shut(end)

    def mend(self) -> None:
        """Carry connections again."""
        with self._lock:
            self._is_cut = False

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, name="relay")
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._is_over:
            with contextlib.suppress(TimeoutError):
                near, _ = self._listener.accept()
                self._carry(near)

    def _carry(self, near: socket.socket) -> None:
        near.settimeout(None)
        host, _, port = self._upstream().rpartition(":")
        try:
            far = socket.create_connection((host, int(port)))
        except OSError:
            near.close()
            return
        with self._lock:
            if self._is_cut:
                near.close()
                far.close()
                return
            self._open |= {near, far}
        self._start(self._pump, near, far)

    def _pump(self, near: socket.socket, far: socket.socket) -> None:
        back = threading.Thread(target=_copy, args=(far, near), name="relay")
        back.start()
        _copy(near, far)
        back.join()
        with self._lock:
            self._open -= {near, far}
        near.close()
        far.close()


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until either end is closed, then close the way in both."""
    with contextlib.suppress(OSError):
        while part := source.recv(_CHUNK):
            target.sendall(part)
    _shut(source)
    _shut(target)


def _shut(end: socket.socket) -> None:
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
