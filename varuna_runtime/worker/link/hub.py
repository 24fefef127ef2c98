"""All connections of one rank: says what came in on any of them, and lets what cannot wait go first."""

import os
import select
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from socket import socket

from torch import Tensor

from varuna_runtime.worker.link.frames import Kind
from varuna_runtime.worker.link.pulse import Traffic
from varuna_runtime.worker.link.sockets import tune
from varuna_runtime.worker.link.stream import Arrival, Stream

_LOOK_S = 0.001  # at what messages that wait wait for: no event tells it
_READ, _WRITE = select.EPOLLIN, select.EPOLLOUT
News = Arrival | Exception  # the exception is the end of the connection


class Hub:
    """Streams by peer; for one thread at a time."""

    def __init__(self, connections: Mapping[int, socket]) -> None:
        """Own these connected sockets."""
        self._poller = select.epoll()
        self._bell = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poller.register(self._bell, _READ)
        self._was_woken = False
        self._ringing = threading.Lock()  # held by whoever uses the bell from any thread
        self._streams: dict[int, Stream] = {}
        self._peers: dict[int, int] = {}  # by descriptor
        self._writing: set[int] = set()
        self._waiting: deque[tuple[int, str, Sequence[Tensor]]] = deque()
        self._before: dict[int, int] = {}  # what must arrive before they go: bytes of each stream
        self._waited: dict[int, int] = {}  # bytes of each stream to the end of the last that could wait
        for peer, sock in sorted(connections.items()):
            tune(sock)
            self._streams[peer] = Stream(sock)
            self._peers[sock.fileno()] = peer
            self._poller.register(sock, _READ)

    @property
    def peers(self) -> tuple[int, ...]:
        """Who is connected."""
        return tuple(self._streams)

    @property
    def has_backlog(self) -> bool:
        """Whether something waits for room in a kernel's buffer, or for other messages."""
        return bool(self._writing or self._waiting)

    @property
    def is_busy(self) -> bool:
        """Whether a message is on its way in either direction."""
        return self.has_backlog or any(stream.is_receiving for stream in self._streams.values())

    def traffic(self) -> dict[int, Traffic]:
        """Return what each connection has carried."""
        return {peer: Traffic(s.num_received(), s.num_queued) for peer, s in self._streams.items()}

    def beat(self, peer: int) -> None:
        """Tell a peer that this rank lives, unless it has not taken what was sent before."""
        if peer not in self._writing:
            self._queue(peer, "", (), Kind.BEAT)

    def send(
        self,
        peer: int,
        tag: str,
        tensors: Sequence[Tensor],
        kind: Kind = Kind.TENSORS,
        *,
        can_wait: bool = False,
    ) -> None:
        """Queue a message and send what can be sent; how a connection broke is told by `move`.

        Connections share an interface, so one that `can_wait` goes only once all before it that cannot have
        arrived, but for those behind such a one themselves.
        """
        if can_wait:
            self._waiting.append((peer, tag, tensors))
            self._send_waiting()
            return
        stream = self._streams[peer]
        is_behind = peer in self._waited and stream.num_arrived() < self._waited[peer]
        self._queue(peer, tag, tensors, kind)
        if not is_behind:  # else holding back more would only leave the other connections idle
            self._before[peer] = stream.num_queued

    def send_all(self) -> None:
        """Queue what waits, whatever has arrived."""
        while self._waiting:
            peer, tag, tensors = self._waiting.popleft()
            if peer in self._streams:
                self._queue(peer, tag, tensors)
                self._waited[peer] = self._streams[peer].num_queued

    def forget_queued(self) -> None:
        """Drop the messages of which nothing was sent."""
        self._waiting.clear()
        for stream in self._streams.values():
            stream.forget_queued()

    def end_sending(self) -> None:
        """Let the peers see that nothing more comes; what they send can still be read."""
        for stream in self._streams.values():
            stream.shut()

    def wake(self) -> None:
        """Have `move` come back at once, this time or the next; from any thread."""
        with self._ringing:
            if self._bell >= 0:
                os.eventfd_write(self._bell, 1)

    def was_woken(self) -> bool:
        """Return whether `move` was, since this was asked last."""
        was_woken, self._was_woken = self._was_woken, False
        return was_woken

    def move(self, timeout_s: float | None) -> Iterator[tuple[int, News]]:
        """Move what can be moved, after waiting at most `timeout_s` for something, and tell what came."""
        self._send_waiting()
        if self._waiting:
            timeout_s = _LOOK_S if timeout_s is None else min(timeout_s, _LOOK_S)
        for fd, events in self._poller.poll(timeout_s):
            if fd == self._bell:
                os.eventfd_read(fd)
                self._was_woken = True
                continue
            peer = self._peers.get(fd, -1)
            stream = self._streams.get(peer)
            if stream is not None and events & _WRITE:
                self._push(peer, stream)
            if stream is not None and events & ~_WRITE:
                yield from self._pull(peer, stream)

    def close(self) -> None:
        """Close every connection."""
        for peer in self.peers:
            self._drop(peer)
        self._poller.close()
        with self._ringing:
            if self._bell >= 0:
                os.close(self._bell)
            self._bell = -1

    def _send_waiting(self) -> None:
        if self._waiting:
            self._before = {
                peer: end
                for peer, end in self._before.items()
                if peer in self._streams and self._streams[peer].num_arrived() < end
            }
            if not self._before:
                self.send_all()

    def _queue(self, peer: int, tag: str, tensors: Sequence[Tensor], kind: Kind = Kind.TENSORS) -> None:
        stream = self._streams[peer]
        stream.queue(tag, tensors, kind)
        if peer not in self._writing:
            self._push(peer, stream)

    def _push(self, peer: int, stream: Stream) -> None:
        try:
            stream.push()
        except OSError:
            stream.forget_outgoing()  # what the peer said before it went is still to be read
            self._before.pop(peer, None)
        if stream.has_backlog is not (peer in self._writing):
            self._writing ^= {peer}
            self._poller.modify(stream.sock, _READ | _WRITE if stream.has_backlog else _READ)

    def _pull(self, peer: int, stream: Stream) -> Iterator[tuple[int, News]]:
        try:
            for arrival in stream.pull():
                yield peer, arrival
        except (OSError, ValueError) as err:
            self._drop(peer)
            yield peer, err

    def _drop(self, peer: int) -> None:
        sock = self._streams.pop(peer).sock
        self._writing.discard(peer)
        del self._peers[sock.fileno()]
        self._poller.unregister(sock)
        sock.close()
