"""A Link over torch.distributed: for every peer one thread that sends and one that receives, in order.

The engine's thread never blocks in a send. Connections of our own beside the group carry beats and faults:
NCCL tells of no dead peer, and no group of a silent one.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from queue import SimpleQueue
from socket import socket

from torch import Tensor

from varuna_runtime.spec.errors import PeerLost
from varuna_runtime.spec.generation import Cause, Fault
from varuna_runtime.worker import clock
from varuna_runtime.worker.link.faults import error_of, from_tensor, lost, to_tensor
from varuna_runtime.worker.link.frames import GOODBYE, Kind
from varuna_runtime.worker.link.group import Group
from varuna_runtime.worker.link.pulse import OnSilence, untold
from varuna_runtime.worker.link.tcp import TcpLink
from varuna_runtime.worker.link.transfer import Channel, Parcel

CLOSE_TIMEOUT_S = 10.0
ABORT_TIMEOUT_S = 1.0
_ARRIVING_S = 0.2  # what a lost peer had sent may be on its way still, though its end was seen


class DistLink:
    """The link of one rank of a Group; it exchanges messages with `peers` only."""

    def __init__(
        self,
        group: Group,
        peers: Collection[int],
        beside: Mapping[int, socket] | None = None,
        *,
        on_silence: OnSilence = untold,
    ) -> None:
        """Start the threads; give the same pairs on every rank.

        `beside` are connections with the peers, owned from now on; `on_silence` is as for a TcpLink.
        """
        self._group = group
        self._changed = threading.Condition()
        self._inbox: dict[tuple[int, str], deque[Parcel]] = defaultdict(deque)
        self._fault: Fault | None = None
        self._ended: set[int] = set()  # from whom nothing comes any more
        self._left: set[int] = set()
        self._num_events = 0
        self._missed_at: int | None = None  # events seen by the first poll without a message since a wait
        self._outbox: dict[int, SimpleQueue[Parcel | None]] = {peer: SimpleQueue() for peer in sorted(peers)}
        self._threads = [
            threading.Thread(target=work, args=(peer,), name=f"link-{word}-{peer}", daemon=True)
            for peer in self._outbox
            for word, work in (("send", self._send_all), ("receive", self._receive_all))
        ]
        self._closed = False
        self._beside = TcpLink(group.rank, beside or {}, on_silence=on_silence, on_fault=self._hear_beside)
        for thread in self._threads:
            thread.start()

    @property
    def rank(self) -> int:
        """The rank on this side."""
        return self._group.rank

    def send(self, to: int, tag: str, tensors: tuple[Tensor, ...], *, can_wait: bool = False) -> None:
        """Queue a message for the thread of `to`; none waits for another thread's."""
        with self._changed:
            if self._fault is not None:
                raise error_of(self._fault)
        self._outbox[to].put(Parcel.of(tag, tensors))

    def poll(self, source: int, tag: str) -> tuple[Tensor, ...] | None:
        """Return the next message of (source, tag) or None."""
        with self._changed:
            queue = self._inbox[source, tag]
            if self._fault is not None and (not queue or self._fault.cause is not Cause.PEER_LOST):
                raise error_of(self._fault)
            if not queue:
                if source in self._left:
                    raise PeerLost(source, "it left the generation")
                if self._missed_at is None:
                    self._missed_at = self._num_events
                return None
            parcel = queue.popleft()
        return parcel.unpack(self._group.device)

    def wait(self) -> None:
        """Block until a message or a loss came since the first poll that found none; then poll anew."""
        with self._changed:
            self._changed.wait_for(lambda: self._num_events != self._missed_at)
            self._missed_at = None

    def wake(self) -> None:
        """End a wait."""
        with self._changed:
            self._notify()

    def meanwhile(self, work: Callable[[], None]) -> None:
        """Forget it: on accelerators computing leaves the rank's own thread free."""

    def abort(self, fault: Fault) -> None:
        """Tell every peer; return when all have gone too, or after a second."""
        deadline_s = clock.now_s() + ABORT_TIMEOUT_S
        self._fail(fault)
        self._beside.abort(fault)
        self._end(max(0.0, deadline_s - clock.now_s()))

    def close(self) -> None:
        """Send what is queued and goodbye, then wait a bounded time for the peers' goodbyes."""
        if self._fault is not None:
            self.abort(self._fault)
            return
        self._end(CLOSE_TIMEOUT_S)
        self._beside.close()

    def _end(self, timeout_s: float) -> None:
        if self._closed:
            return
        self._closed = True
        for outbox in self._outbox.values():
            outbox.put(None)
        # A socket closed with unread bytes would reset the connection under a peer's last messages.
        deadline_s = clock.now_s() + timeout_s
        with self._changed:
            self._changed.wait_for(lambda: self._ended >= self._outbox.keys(), timeout_s)
        for thread in self._threads:
            thread.join(max(0.0, deadline_s - clock.now_s()))

    def _send_all(self, peer: int) -> None:
        channel = Channel(self._group, peer)
        try:
            while (parcel := self._outbox[peer].get()) is not None:
                channel.send(parcel)
            channel.send(Parcel(GOODBYE, ()))
        except Exception as err:  # a thread that dies in silence would leave the engine waiting
            self._lose(peer, err)

    def _receive_all(self, peer: int) -> None:
        channel = Channel(self._group, peer)
        try:
            while (parcel := channel.receive()).description != GOODBYE:
                if parcel.description.kind is Kind.ABORT:
                    self._fail(from_tensor(*parcel.tensors))
                    continue
                with self._changed:
                    self._inbox[peer, parcel.description.tag].append(parcel)
                    self._notify()
        except Exception as err:  # as above
            self._lose(peer, err)
            return
        with self._changed:
            self._left.add(peer)
            self._ended.add(peer)
            self._notify()

    def _lose(self, peer: int, reason: Exception) -> None:
        with self._changed:
            has_left = peer in self._left
            self._ended.add(peer)
            self._notify()
        if not has_left:
            self._fail(lost(peer, reason))

    def _hear_beside(self, fault: Fault) -> None:
        if fault.cause is Cause.PEER_LOST:
            waiting = threading.Timer(_ARRIVING_S, self._fail, (fault,))
            waiting.daemon = True
            waiting.start()
        else:
            self._fail(fault)

    def _fail(self, fault: Fault) -> None:
        """Take the first fault as the generation's, and pass it on."""
        with self._changed:
            if self._fault is not None:
                return
            self._fault = fault
            for peer in self._outbox.keys() - self._ended:  # before any goodbye
                self._outbox[peer].put(Parcel.of("", (to_tensor(fault),), Kind.ABORT))
            self._notify()

    def _notify(self) -> None:
        self._num_events += 1
        self._changed.notify_all()
