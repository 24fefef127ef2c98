"""The launcher's end of its socket to the agent: whole messages in, whole messages out, blocking."""

import socket

from varuna_runtime.wire import launch

_CHUNK = 65536


class LineSocket:
    """One message a line; a closed peer reads as None."""

    def __init__(self, sock: socket.socket) -> None:
        self._sock = sock
        self._buffer = bytearray()

    def fileno(self) -> int:
        """Return the descriptor, for a selector."""
        return self._sock.fileno()

    def send(self, message: launch.Message) -> None:
        """Write one message."""
        self._sock.sendall(launch.encode(message))

    def receive(self) -> list[launch.Message] | None:
        """Read once: the messages completed by it, maybe none; None when the agent is gone."""
        try:
            chunk = self._sock.recv(_CHUNK)
        except ConnectionError:
            return None
        if not chunk:
            return None
        self._buffer += chunk
        *lines, rest = bytes(self._buffer).split(b"\n")
        self._buffer = bytearray(rest)
        return [launch.decode(line) for line in lines]

    def close(self) -> None:
        """Close this process's copy only."""
        self._sock.close()
