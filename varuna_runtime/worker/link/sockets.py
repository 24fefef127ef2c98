"""What the kernel is asked for on a link's sockets."""

import fcntl
import socket
import sys
import termios

BUFFER_BYTES = 4 << 20  # each way: keeps a fast network busy while a rank computes and nobody looks
_IDLE_S, _INTERVAL_S, _PROBES = 15, 5, 6
_UNHEARD_MS = 120_000  # the backstop: a machine that vanished is noticed much earlier, elsewhere


def listen(host: str) -> socket.socket:
    """Bind a free port of `host`, an address, and nothing else; `getsockname()[1]` tells which."""
    listener = socket.create_server((host, 0), family=family_of(host), backlog=1024)
    listener.setblocking(False)
    return listener


def family_of(host: str) -> socket.AddressFamily:
    """Return the family of an address."""
    return socket.AF_INET6 if ":" in host else socket.AF_INET


def tune(sock: socket.socket) -> None:
    """Prepare a connection for messages of all sizes."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, _IDLE_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, _INTERVAL_S)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, _PROBES)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _UNHEARD_MS)
    for option in (socket.SO_SNDBUF, socket.SO_RCVBUF):
        if _may_have(option, BUFFER_BYTES):
            sock.setsockopt(socket.SOL_SOCKET, option, BUFFER_BYTES)


def wake_at(sock: socket.socket, num_bytes: int) -> None:
    """Report the socket as readable once so many bytes are there, or the peer is gone."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, num_bytes)


def unacknowledged(sock: socket.socket) -> int:
    """Return how many bytes the kernel holds that the peer's kernel has not taken (SIOCOUTQ, tcp(7))."""
    return int.from_bytes(fcntl.ioctl(sock, termios.TIOCOUTQ, bytes(4)), sys.byteorder)


def unread(sock: socket.socket) -> int:
    """Return how many bytes have come that nobody has read (SIOCINQ, tcp(7))."""
    return int.from_bytes(fcntl.ioctl(sock, termios.FIONREAD, bytes(4)), sys.byteorder)


def _may_have(option: int, num_bytes: int) -> bool:
    """Whether the kernel grants so large a buffer; a smaller one is worse than its own choice."""
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, option, num_bytes)
        return probe.getsockopt(socket.SOL_SOCKET, option) >= 2 * num_bytes  # it doubles what it grants
