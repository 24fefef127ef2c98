"""One connection to a peer: whole messages in both directions, without blocking and without copies."""

import socket
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from varuna_runtime.worker.link.frames import (
    PREFIX_BYTES,
    Description,
    Kind,
    body_bytes,
    decode,
    describe,
    encode,
)
from varuna_runtime.worker.link.sockets import unacknowledged, unread, wake_at

_STAGE_BYTES = 64 << 10  # a small message is read in one go
_MAX_PARTS = 64  # in one call
_MAX_WAKE_BYTES = 1 << 20
_AS_KNOWN = {  # types of which NumPy knows nothing
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e5m2: torch.uint8,
}
_MAX_READ_BYTES = 4 << 20  # in one go, however fast the peer is


@dataclass(frozen=True, slots=True)
class Arrival:
    """A message that came in; its tensors are leaves without `requires_grad`."""

    description: Description
    tensors: tuple[Tensor, ...]


class Stream:
    """Sends and receives over a connected, non-blocking socket, which it owns; for one thread at a time."""

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self._outgoing: deque[deque[memoryview]] = deque()  # messages, of parts
        self._has_begun = False  # to send the first of them
        self.num_queued = 0  # bytes, ever
        self._num_pushed = 0  # of these, given to the kernel
        self._stage = memoryview(bytearray(_STAGE_BYTES))
        self._begin = self._end = 0  # of what is staged and not used yet
        self._incoming: Arrival | None = None
        self._unfilled: deque[memoryview] = deque()
        self._wake_bytes = 1
        self._num_read = 0  # in this go
        self._num_received = 0  # bytes, ever

    @property
    def has_backlog(self) -> bool:
        """Whether messages wait for room in the kernel's buffer."""
        return bool(self._outgoing)

    @property
    def is_receiving(self) -> bool:
        """Whether a message has come in part."""
        return self._incoming is not None

    def queue(self, tag: str, tensors: Sequence[Tensor], kind: Kind = Kind.TENSORS) -> None:
        """Append a message; the tensors must not change before it has left."""
        header = memoryview(encode(describe(tag, tensors, kind)))
        parts = deque([header, *(bytes_of(t) for t in tensors if t.numel())])
        self.num_queued += sum(map(len, parts))
        self._outgoing.append(parts)

    def num_arrived(self) -> int:
        """Return how many of the bytes ever queued are in the peer's hands, or its kernel's."""
        return self._num_pushed - unacknowledged(self.sock)

    def num_received(self) -> int:
        """Return how many bytes ever came, those included that are still to be read."""
        return self._num_received + unread(self.sock)

    def forget_queued(self) -> None:
        """Drop the messages of which nothing was sent."""
        while len(self._outgoing) > self._has_begun:
            self._outgoing.pop()

    def forget_outgoing(self) -> None:
        """Drop everything: nobody takes it any more."""
        self._outgoing.clear()
        self._has_begun = False

    def shut(self) -> None:
        """Let the peer see the end of what we send."""
        with suppress(OSError):
            self.sock.shutdown(socket.SHUT_WR)

    def push(self) -> None:
        """Send what the kernel takes. Raises OSError if the peer is gone."""
        while self._outgoing:
            parts = self._outgoing[0]
            try:
                sent = self.sock.sendmsg([parts[i] for i in range(min(len(parts), _MAX_PARTS))])
            except BlockingIOError:
                return
            self._has_begun = True
            self._num_pushed += sent
            while parts and sent >= len(parts[0]):
                sent -= len(parts.popleft())
            if parts:
                parts[0] = parts[0][sent:]
            else:
                self._outgoing.popleft()
                self._has_begun = False

    def pull(self) -> Iterator[Arrival]:
        """Yield what arrived in whole; leaves the rest to the next call when there is much.

        Raises OSError if the peer is gone, ValueError if it does not speak our protocol.
        """
        has_more = True  # perhaps, in the socket
        self._num_read = 0
        while True:
            if self._incoming is None and not self._read_header():
                if not has_more:
                    break
                has_more = self._read_ahead() and self._num_read < _MAX_READ_BYTES
            elif self._unfilled and self._begin < self._end:
                self._fill_from_stage()
            elif self._unfilled:
                if not has_more:
                    break
                has_more = self._fill() and self._num_read < _MAX_READ_BYTES
            else:
                arrival, self._incoming = self._incoming, None
                assert arrival is not None
                yield arrival
        self._wake_at(sum(map(len, self._unfilled)))

    def _read_header(self) -> bool:
        """Begin a message if its header is staged."""
        staged = self._stage[self._begin : self._end]
        if len(staged) < PREFIX_BYTES or len(staged) < (length := PREFIX_BYTES + body_bytes(staged)):
            return False
        self._begin += length
        description = decode(bytes(staged[:length]))
        tensors = tuple(torch.empty(s.shape, dtype=s.dtype) for s in description.slabs)
        self._incoming = Arrival(description, tensors)
        self._unfilled.extend(bytes_of(t) for t in tensors if t.numel())
        return True

    def _read_ahead(self) -> bool:
        """Stage what comes next; return whether there may be more."""
        staged = self._end - self._begin
        if self._end == len(self._stage) or not staged:
            rest = bytes(self._stage[self._begin : self._end])
            if staged == len(self._stage):  # of one header
                self._stage = memoryview(bytearray(2 * staged))
            self._stage[:staged] = rest
            self._begin, self._end = 0, staged
        room = self._stage[self._end :]
        count = self._receive(room)
        self._end += count
        return count == len(room)

    def _fill_from_stage(self) -> None:
        target = self._unfilled[0]
        count = min(self._end - self._begin, len(target))
        target[:count] = self._stage[self._begin : self._begin + count]
        self._begin += count
        self._filled(count)

    def _fill(self) -> bool:
        """Read the next bytes where they belong; return whether there may be more."""
        wanted = len(self._unfilled[0])
        count = self._receive(self._unfilled[0])
        self._filled(count)
        return count == wanted

    def _filled(self, count: int) -> None:
        target = self._unfilled.popleft()
        if count < len(target):
            self._unfilled.appendleft(target[count:])

    def _receive(self, into: memoryview) -> int:
        try:
            count = self.sock.recv_into(into)
        except BlockingIOError:
            return 0
        if not count:
            raise ConnectionError("it closed the connection")
        self._num_read += count
        self._num_received += count
        return count

    def _wake_at(self, num_bytes: int) -> None:
        """Let the kernel report so many bytes at once, not each packet."""
        wake_bytes = max(1, min(num_bytes, _MAX_WAKE_BYTES))
        if wake_bytes != self._wake_bytes:
            self._wake_bytes = wake_bytes
            wake_at(self.sock, wake_bytes)


def bytes_of(tensor: Tensor) -> memoryview:
    """Return the memory of a host tensor, or of its contiguous copy; no tensor of no elements."""
    plain = tensor.detach()
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    plain = plain.contiguous()
    if (known := _AS_KNOWN.get(plain.dtype)) is not None:
        plain = plain.view(known)
    return plain.numpy().reshape(-1).view(np.uint8).data
