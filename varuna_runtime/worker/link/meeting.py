"""Connects one rank with its peers: the lower rank of a pair calls the higher one, both prove who they are.

A stranger on the port, however slow, holds nobody up.
"""

import secrets
import selectors
import socket
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from errno import ECONNREFUSED, EINPROGRESS

from varuna_runtime.spec.errors import PeerLost, VarunaError
from varuna_runtime.worker import clock
from varuna_runtime.worker.link.handshake import NONCE_BYTES, Handshake, Identity, Refused, accept, offer
from varuna_runtime.worker.link.sockets import family_of

MAX_UNPROVEN = 64  # connections at once that have not shown yet who they are
_RETRY_S = 0.1
Address = tuple[str, int]


class DidNotMeet(VarunaError):
    """Some peer did not come in time; the message names it and what was seen of it."""


def meet(
    me: Identity,
    listener: socket.socket | None,
    addresses: Mapping[int, Address],
    peers: Collection[int],
    *,
    timeout_s: float,
) -> dict[int, socket.socket]:
    """Return a connected, proven, non-blocking socket for each peer; closes the listener.

    Needs the addresses of the peers above `me.rank`, and a listener if there are any below. Raises PeerLost
    for a peer whose port is closed, DidNotMeet after `timeout_s`.
    """
    meeting = _Meeting(me, listener, addresses, peers)
    try:
        return meeting.run(clock.now_s() + timeout_s)
    except BaseException:
        meeting.drop_all()
        raise
    finally:
        meeting.close()


@dataclass(slots=True)
class _Talk:
    """A connection in the middle of its handshake; `peer` is None for one that called us."""

    sock: socket.socket
    handshake: Handshake
    peer: int | None
    wanted: int
    received: bytes = b""


class _Meeting:
    def __init__(
        self,
        me: Identity,
        listener: socket.socket | None,
        addresses: Mapping[int, Address],
        peers: Collection[int],
    ) -> None:
        self._me = me
        self._listener = listener
        self._addresses = addresses
        self._met: dict[int, socket.socket] = {}
        self._callers = {peer for peer in peers if peer < me.rank}
        self._to_call = {peer: 0.0 for peer in sorted(peers) if peer > me.rank}  # and when, at the earliest
        self._last_seen: dict[int, str] = {}
        self._talks: dict[socket.socket, _Talk] = {}  # oldest first
        self._selector = selectors.DefaultSelector()
        if listener is not None:
            self._selector.register(listener, selectors.EVENT_READ)
        assert listener is not None or not self._callers

    def run(self, deadline_s: float) -> dict[int, socket.socket]:
        missing = set(self._callers) | set(self._to_call)
        while missing := missing - self._met.keys():
            now_s = clock.now_s()
            if now_s >= deadline_s:
                raise DidNotMeet("; ".join(self._absence(peer) for peer in sorted(missing)))
            for peer in [p for p, due_s in self._to_call.items() if due_s <= now_s]:
                del self._to_call[peer]
                self._call(peer)
            for key, _ in self._selector.select(min(_RETRY_S, deadline_s - now_s)):
                if key.fileobj is self._listener:
                    self._let_in()
                elif (talk := self._talks.get(key.fileobj)) is not None:  # type: ignore[call-overload]
                    self._go_on(talk)
        return self._met

    def _absence(self, peer: int) -> str:
        return f"rank {peer} did not come: {self._last_seen.get(peer, 'it did not connect')}"

    def _call(self, peer: int) -> None:
        host, port = self._addresses[peer]
        self._last_seen[peer] = f"{host}:{port} did not answer"
        sock = socket.socket(family_of(host))
        sock.setblocking(False)
        talk = _Talk(sock, offer(self._me, peer, secrets.token_bytes(NONCE_BYTES)), peer, 0)
        self._talks[sock] = talk
        self._selector.register(sock, selectors.EVENT_WRITE)
        try:
            error = sock.connect_ex((host, port))
        except OSError as err:  # a host's name that cannot be looked up
            self._drop(talk, err)
            return
        if error not in (0, EINPROGRESS):
            self._drop(talk, OSError(error, "cannot connect"))

    def _let_in(self) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except OSError:
            return  # it went away again
        sock.setblocking(False)
        strangers = [talk for talk in self._talks.values() if talk.peer is None]
        if len(strangers) >= MAX_UNPROVEN:
            self._drop(strangers[0], Refused("too many at once"))
        expected = self._callers
        talk = _Talk(sock, accept(self._me, expected, secrets.token_bytes(NONCE_BYTES)), None, 0)
        self._talks[sock] = talk
        self._selector.register(sock, selectors.EVENT_READ)
        self._turn(talk, None)

    def _go_on(self, talk: _Talk) -> None:
        try:
            if talk.wanted == 0:  # a call that was answered, or not
                if error := talk.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
                    raise OSError(error, "cannot connect")
                self._selector.modify(talk.sock, selectors.EVENT_READ)
                self._turn(talk, None)
                return
            received = talk.sock.recv(talk.wanted - len(talk.received))
            if not received:
                raise ConnectionError("it closed the connection before both had proven who they are")
        except BlockingIOError:
            return
        except OSError as err:
            self._drop(talk, err)
            return
        talk.received += received
        if len(talk.received) == talk.wanted:
            self._turn(talk, talk.received)

    def _turn(self, talk: _Talk, received: bytes | None) -> None:
        """Let the handshake hear `received`, send what it says next, and learn how it ended."""
        try:
            turn = next(talk.handshake) if received is None else talk.handshake.send(received)
            while True:
                if turn.send:
                    talk.sock.send(turn.send)  # a first hundred bytes always fit the socket's buffer
                talk.wanted, talk.received = turn.wanted, b""
                if turn.wanted:
                    return
                turn = talk.handshake.send(b"")
        except StopIteration as end:
            self._selector.unregister(talk.sock)
            del self._talks[talk.sock]
            self._callers.discard(end.value)
            self._met[end.value] = talk.sock
        except (Refused, OSError) as err:
            self._drop(talk, err)

    def _drop(self, talk: _Talk, err: Exception) -> None:
        self._selector.unregister(talk.sock)
        del self._talks[talk.sock]
        talk.sock.close()
        if talk.peer is None:
            return
        if isinstance(err, OSError) and err.errno == ECONNREFUSED:
            raise PeerLost(talk.peer, "nothing listens on its port any more")
        self._last_seen[talk.peer] = str(err)
        self._to_call[talk.peer] = clock.now_s() + _RETRY_S

    def drop_all(self) -> None:
        for sock in self._met.values():
            sock.close()

    def close(self) -> None:
        for sock in self._talks:
            sock.close()
        if self._listener is not None:
            self._listener.close()
        self._selector.close()
