"""A Link over connections of our own: the engine's thread moves the bytes itself, at send, poll and wait.

While it computes, a helper thread looks after the connections now and then; the kernel's buffers bridge the
time between. So a message costs no change of threads.
"""

import threading
from collections import defaultdict, deque
from collections.abc import Callable, Collection, Mapping
from socket import socket

from torch import Tensor

from varuna_runtime.spec.errors import InvalidInput, PeerLost
from varuna_runtime.spec.generation import Cause, Fault
from varuna_runtime.worker import clock
from varuna_runtime.worker.link.faults import error_of, from_tensor, lost, to_tensor
from varuna_runtime.worker.link.frames import Kind
from varuna_runtime.worker.link.handshake import Identity
from varuna_runtime.worker.link.hub import Hub, News
from varuna_runtime.worker.link.meeting import Address, meet
from varuna_runtime.worker.link.pulse import LOOK_S, OnSilence, Pulse, untold
from varuna_runtime.worker.link.stream import Arrival

CLOSE_TIMEOUT_S = 10.0
ABORT_TIMEOUT_S = 1.0
_IDLE_LOOK_S = 0.010
_BUSY_LOOK_S = 0.001  # while a message is on its way


class TcpLink:
    """The link of one rank to its peers, for tensors in host memory."""

    def __init__(
        self,
        rank: int,
        connections: Mapping[int, socket],
        *,
        on_silence: OnSilence = untold,
        on_fault: Callable[[Fault], None] = untold,
    ) -> None:
        """Own these connected sockets, one for each peer.

        `on_silence` hears of peers that fall silent and of those heard again, `on_fault` of the first fault;
        both from any thread, and they may not use the link.
        """
        self._rank = rank
        self._on_silence = on_silence
        self._on_fault = on_fault
        self._hub = Hub(connections)
        self._pulse = Pulse(connections, clock.now_s())
        self._inbox: dict[tuple[int, str], deque[Arrival]] = defaultdict(deque)
        self._left: set[int] = set()  # said goodbye
        self._fault: Fault | None = None
        self._num_events = 0
        self._missed_at: int | None = None  # events seen by the first poll without a message since a wait
        self._is_closed = False
        self._meanwhile: Callable[[], None] | None = None
        self._moving = threading.Lock()  # held by whoever moves bytes
        self._has_backlog = threading.Event()
        self._helper = threading.Thread(target=self._look_after, name="link", daemon=True)
        self._helper.start()

    @classmethod
    def join(
        cls,
        me: Identity,
        listener: socket | None,
        addresses: Mapping[int, Address],
        peers: Collection[int],
        *,
        timeout_s: float = 60.0,
        on_silence: OnSilence = untold,
        on_fault: Callable[[Fault], None] = untold,
    ) -> "TcpLink":
        """Connect with `peers`, each of which calls this too; see `meet`."""
        connections = meet(me, listener, addresses, peers, timeout_s=timeout_s)
        return cls(me.rank, connections, on_silence=on_silence, on_fault=on_fault)

    @property
    def rank(self) -> int:
        """The rank on this side."""
        return self._rank

    def send(self, to: int, tag: str, tensors: tuple[Tensor, ...], *, can_wait: bool = False) -> None:
        """Hand the message to the kernel; what it does not take at once follows later."""
        with self._moving:
            if self._fault is not None:
                raise error_of(self._fault)
            if to in self._left:
                raise PeerLost(to, "it left the generation")
            self._hub.send(to, tag, tensors, can_wait=can_wait)
            if self._hub.has_backlog:
                self._has_backlog.set()

    def poll(self, source: int, tag: str) -> tuple[Tensor, ...] | None:
        """Return the next message of (source, tag) or None."""
        with self._moving:
            queue = self._inbox[source, tag]
            if not queue:
                self._move(0)
            if self._fault is not None and (not queue or self._fault.cause is not Cause.PEER_LOST):
                raise error_of(self._fault)
            if not queue:
                if source in self._left:
                    raise PeerLost(source, "it left the generation")
                if self._missed_at is None:
                    self._missed_at = self._num_events
                return None
            arrival = queue.popleft()
        slabs = zip(arrival.tensors, arrival.description.slabs, strict=True)
        return tuple(tensor.requires_grad_(slab.requires_grad) for tensor, slab in slabs)

    def wait(self) -> None:
        """Move bytes until a message or a fault came since the first poll that found none; then poll anew."""
        with self._moving:
            while self._num_events == self._missed_at:
                self._move(LOOK_S)
            self._missed_at = None

    def wake(self) -> None:
        """End a wait."""
        self._hub.wake()

    def meanwhile(self, work: Callable[[], None]) -> None:
        """See Link; the helper thread calls it."""
        self._meanwhile = work

    def abort(self, fault: Fault) -> None:
        """Tell every peer; return when all have gone too, or after a second."""
        with self._moving:
            if self._is_closed:
                return
            self._fail(fault)
            deadline_s = clock.now_s() + ABORT_TIMEOUT_S
            self._move_until(lambda: not self._hub.has_backlog, deadline_s)
            self._hub.end_sending()
            self._move_until(lambda: not self._hub.peers, deadline_s)
            self._end()

    def close(self) -> None:
        """Send what is queued and goodbye, then wait a bounded time for the peers' goodbyes."""
        if self._fault is not None:
            self.abort(self._fault)
        with self._moving:
            if self._is_closed:
                return
            self._hub.send_all()
            for peer in self._hub.peers:
                self._hub.send(peer, "", (), Kind.GOODBYE)
            # A socket closed with unread bytes would reset the connection under a peer's last messages.
            self._move_until(self._all_left, clock.now_s() + CLOSE_TIMEOUT_S)
            self._end()

    def _all_left(self) -> bool:
        return self._fault is not None or (
            self._left.issuperset(self._hub.peers) and not self._hub.has_backlog
        )

    def _end(self) -> None:
        self._is_closed = True
        self._hub.close()
        self._has_backlog.set()  # wakes the helper

    def _look_after(self) -> None:
        """Keep the bytes moving while the engine computes; the helper's thread."""
        pause_s = _IDLE_LOOK_S
        while True:
            if self._has_backlog.wait(pause_s):
                self._has_backlog.clear()
            if not self._moving.acquire(blocking=False):
                pause_s = _IDLE_LOOK_S  # the engine's thread is at it
                continue
            try:
                if self._is_closed:
                    return
                seen = self._num_events
                self._move(0)
                has_news = self._num_events != seen
                pause_s = _BUSY_LOOK_S if self._hub.is_busy else _IDLE_LOOK_S
            except Exception as err:  # out of memory, say; in silence it would leave the engine waiting
                text = f"its link failed: {type(err).__name__}: {err}".splitlines()[0]
                self._fail(Fault(rank=self._rank, cause=Cause.WORKER_CRASH, message=text))
                has_news = False
            finally:
                self._moving.release()
            if has_news and self._meanwhile is not None:
                self._meanwhile()

    # --- with the lock held ----------------------------------------------------------------------------

    def _move(self, timeout_s: float) -> None:
        for peer, news in self._hub.move(timeout_s):
            self._hear(peer, news)
        self._num_events += self._hub.was_woken()
        self._look(clock.now_s())

    def _look(self, now_s: float) -> None:
        """Send the beats that are due, and tell who fell silent; after a fault, that is of no interest."""
        if self._fault is not None or not self._pulse.is_due(now_s):
            return
        present = {peer: seen for peer, seen in self._hub.traffic().items() if peer not in self._left}
        look = self._pulse.look(now_s, present)
        for peer in look.due:
            self._hub.beat(peer)
        for change in look.changes:
            self._on_silence(change)

    def _move_until(self, is_done: Callable[[], bool], deadline_s: float) -> None:
        while not is_done() and (left_s := deadline_s - clock.now_s()) > 0:
            self._move(left_s)

    def _hear(self, peer: int, news: News) -> None:
        if not isinstance(news, Exception) and news.description.kind is Kind.BEAT:
            return
        if isinstance(news, Exception):
            if peer not in self._left:
                self._fail(lost(peer, news))
        elif news.description.kind is Kind.TENSORS:
            self._inbox[peer, news.description.tag].append(news)
        elif news.description.kind is Kind.GOODBYE:
            self._left.add(peer)
        else:
            self._fail(_fault_in(news, peer))
        self._num_events += 1

    def _fail(self, fault: Fault) -> None:
        """Take the first fault as the generation's, and pass it on."""
        if self._fault is not None:
            return
        self._fault = fault
        self._num_events += 1
        self._hub.forget_queued()
        for peer in set(self._hub.peers) - self._left:
            self._hub.send(peer, "", (to_tensor(fault),), Kind.ABORT)
        self._on_fault(fault)


def _fault_in(arrival: Arrival, peer: int) -> Fault:
    try:
        return from_tensor(*arrival.tensors)
    except (InvalidInput, TypeError) as err:
        return lost(peer, err)
