"""Frames and chunks on a socket: every wait ends with its time-out, a broken stream is a VaultLost."""

import array
import socket
import struct
import zlib

from varuna_runtime.spec.errors import VaultLost
from varuna_runtime.vault import clock

MOST_FRAME_BYTES = 32 << 20  # records of many thousand tensors
CHUNK_BYTES = 1 << 20
_LENGTH = struct.Struct(">I")
_CHUNK = struct.Struct(">II")  # bytes that follow, their CRC-32
_MOST_DESCRIPTORS = 2


def send_frame(sock: socket.socket, *frames: bytes, descriptors: tuple[int, ...] = ()) -> None:
    """Send frames, the first with `descriptors` where there are any."""
    packed = b"".join(_LENGTH.pack(len(frame)) + frame for frame in frames)
    try:
        sent = socket.send_fds(sock, [packed], descriptors) if descriptors else 0
        sock.sendall(memoryview(packed)[sent:])
    except OSError as err:
        raise VaultLost(_reason(err)) from err


def receive_frame(sock: socket.socket, most_bytes: int = MOST_FRAME_BYTES) -> bytes:
    """Return one frame."""
    return _body(sock, receive_exactly(sock, _LENGTH.size), most_bytes)


def receive_frame_with(sock: socket.socket) -> tuple[bytes, tuple[int, ...]]:
    """Return one frame and the descriptors that came with it; they are the caller's to close."""
    try:
        start, descriptors, _, _ = socket.recv_fds(
            sock, _LENGTH.size, _MOST_DESCRIPTORS, socket.MSG_CMSG_CLOEXEC
        )
    except OSError as err:
        raise VaultLost(_reason(err)) from err
    if not start:
        raise VaultLost("it ended the connection")
    start += receive_exactly(sock, _LENGTH.size - len(start))
    return _body(sock, start, MOST_FRAME_BYTES), tuple(descriptors)


def _body(sock: socket.socket, start: bytes, most_bytes: int) -> bytes:
    (length,) = _LENGTH.unpack(start)
    if length > most_bytes:
        raise VaultLost(f"a message of {length} bytes; at most {most_bytes} are taken")
    return receive_exactly(sock, length)


def receive_exactly(sock: socket.socket, num_bytes: int) -> bytes:
    """Return so many bytes."""
    received = bytearray(num_bytes)
    receive_into(sock, memoryview(received))
    return bytes(received)


def receive_into(sock: socket.socket, into: memoryview) -> None:
    """Fill `into`."""
    filled, size = 0, len(into)
    try:
        while filled < size:
            count = sock.recv_into(into[filled:])
            if not count:
                raise VaultLost("it ended the connection")
            filled += count
    except OSError as err:
        raise VaultLost(_reason(err)) from err


def receive_until(sock: socket.socket, num_bytes: int, deadline_s: float) -> bytes:
    """Return so many bytes, however slowly they come, but not after `deadline_s`."""
    received = bytearray()
    try:
        while len(received) < num_bytes:
            left_s = deadline_s - clock.now_s()
            if left_s <= 0:
                raise VaultLost("it took too long")
            sock.settimeout(left_s)
            part = sock.recv(num_bytes - len(received))
            if not part:
                raise VaultLost("it ended the connection")
            received += part
    except OSError as err:
        raise VaultLost(_reason(err)) from err
    return bytes(received)


def send_chunks(sock: socket.socket, memory: memoryview) -> None:
    """Send what `memory` holds."""
    try:
        for start in range(0, len(memory), CHUNK_BYTES):
            chunk = memory[start : start + CHUNK_BYTES]
            head = _CHUNK.pack(len(chunk), zlib.crc32(chunk))
            sent = sock.sendmsg([head, chunk])
            if sent < len(head):
                sock.sendall(head[sent:])
            sock.sendall(chunk[max(0, sent - len(head)) :])
    except OSError as err:
        raise VaultLost(_reason(err)) from err


def receive_chunks(sock: socket.socket, into: memoryview) -> None:
    """Fill `into` with what `send_chunks` sent of that size; VaultLost if a chunk is not what was sent."""
    for start in range(0, len(into), CHUNK_BYTES):
        chunk = into[start : start + CHUNK_BYTES]
        length, crc = _CHUNK.unpack(receive_exactly(sock, _CHUNK.size))
        if length != len(chunk):
            raise VaultLost(f"a chunk of {length} bytes where {len(chunk)} were due")
        receive_into(sock, chunk)
        if zlib.crc32(chunk) != crc:
            raise VaultLost(f"the bytes from {start} on were damaged on their way")


def peer_user(sock: socket.socket) -> int:
    """Return the user id of who is at the other end of a Unix socket."""
    ids = array.array("i", sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))
    return ids[1]


def unix_address(path: str) -> str:
    """Return the address of a socket's path; one that begins with @ is a name outside the file system."""
    return "\0" + path[1:] if path.startswith("@") else path


def _reason(err: OSError) -> str:
    return "it does not answer" if isinstance(err, TimeoutError) else f"the connection broke: {err}"
