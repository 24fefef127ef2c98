"""The TLS listener: knows who is at the other end, tells why one is not let in, and relays bytes.

gRPC for Python can neither ask for an optional client certificate nor tell why a handshake failed. So it
listens on loopback, and learns from here who is behind each connection it gets.
"""

import asyncio
import errno
import os
import socket
import ssl
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

import structlog

from varuna_manager import files
from varuna_manager.clock import wall_s
from varuna_manager.security.authority import SERVER_LIFE_S, Authority, issued_at_s, node_of
from varuna_manager.security.relaying import PIECE_BYTES, Trial, pump, until_first_ends
from varuna_runtime.spec.errors import Conflict

_log = structlog.get_logger()
_CLOSE_S = 2.0
_RENEW_EVERY_S = 3600.0
_PLAIN_S = 10.0
_HANDSHAKE_RECORD = b"\x16"  # a TLS client's first byte
_HTTP2 = b"PRI * HTTP/2.0"
_PLAIN_ANSWER = (
    b"HTTP/1.1 400 Bad Request\r\nContent-Type: text/plain\r\nConnection: close\r\n\r\n"
    b"This is the port of a varuna manager; it speaks gRPC over TLS only.\n"
)
_BREATH_S = 0.2  # after an accept that failed for want of file descriptors

Refused = Callable[[str, str], None]
"""(address of the peer, why it was not let in)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Peer:
    """Who is at the other end of a connection."""

    address: str  # without a port
    node: str = ""  # of its certificate; empty without one
    is_plain: bool = False  # it spoke plain text: it may hear why it is refused, and nothing else
    issued_at_s: float = 0.0  # Unix time at which the certificate was made
    expires_at_s: float | None = None  # Unix time at which the certificate ends


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What strangers may cost."""

    handshake_s: float = 10.0
    handshakes: int = 256  # at once; the one that takes longest makes room for the next
    strangers: int = 256  # connections without a certificate
    per_address: int = 64  # of each of these two
    unproven_s: float = 60.0  # within this a stranger shows a token, or is let go of
    unproven_bytes: int = 256 << 10  # and no more than this of it goes on before
    per_node: int = 32
    silence_s: int = 30  # a peer whose kernel does not answer for this long is gone


def listen(host: str, port: int) -> socket.socket:
    """Return a listening socket; Conflict when another process has the port."""
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        is_dual = host == "::" and socket.has_dualstack_ipv6()
        listener = socket.create_server((host, port), family=family, backlog=512, dualstack_ipv6=is_dual)
    except OSError as err:
        remedy = "give an address of this machine as `host`, and a port that it may use"
        if err.errno == errno.EADDRINUSE:
            remedy = "end the process that has the port, perhaps another manager, or choose another port"
        raise Conflict(f"cannot listen on {host}:{port}: {os.strerror(err.errno or 0)}; {remedy}") from err
    listener.setblocking(False)
    return listener


class Certificate:
    """The listener's own certificate, replaced long before it expires."""

    def __init__(self, authority: Authority, path: Path) -> None:
        self._authority = authority
        self._path = path
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_3
        self.context.set_alpn_protocols(["h2"])
        self.context.verify_mode = ssl.CERT_OPTIONAL
        self.context.num_tickets = 0  # a resumed session would not look at the client's certificate again
        self.context.load_verify_locations(cadata=authority.ca_pem)
        self._renew()

    async def keep_fresh(self) -> None:
        """Renew it at two thirds of its life until cancelled; new connections see the new one."""
        while True:
            await asyncio.sleep(_RENEW_EVERY_S)
            if wall_s() > self._since_s + SERVER_LIFE_S * 2 / 3:
                self._renew()

    def _renew(self) -> None:
        self._since_s = wall_s()
        files.replace(self._path, self._authority.server_pem(self._since_s))
        self.context.load_cert_chain(self._path)


class Front:
    """Accepts until cancelled; no connection outlives `run`."""

    def __init__(
        self,
        listener: socket.socket,
        context: ssl.SSLContext,
        *,
        inner_port: int,
        refused: Refused,
        limits: Limits | None = None,
    ) -> None:
        self._listener = listener
        self._context = context
        self._inner_port = inner_port
        self._refused = refused
        self._limits = limits or Limits()
        self._held: Counter[str] = Counter()
        self._peers: dict[int, Peer] = {}
        self._trials: dict[int, Trial] = {}
        self._handshakes: dict[asyncio.Task[None], str] = {}  # the oldest first, with its address
        self._renewed: dict[str, float] = {}

    def peer(self, relayed: str) -> Peer | None:
        """Return who is behind a connection to the inner server, given as gRPC's `ipv4:127.0.0.1:PORT`."""
        port = relayed.rpartition(":")[2]
        is_ours = relayed.startswith("ipv4:127.0.0.1:") and port.isdigit()
        return self._peers.get(int(port)) if is_ours else None

    def prove(self, relayed: str) -> None:
        """Let the peer behind a connection send what it likes: it has shown a valid token."""
        port = relayed.rpartition(":")[2]
        if port.isdigit() and (trial := self._trials.get(int(port))) is not None:
            trial.end()

    def extend(self, node: str, until_s: float) -> None:
        """Let the connections of a node last until then (Unix time): it has just renewed its certificate."""
        now_s = wall_s()
        self._renewed = {name: end for name, end in self._renewed.items() if end > now_s}
        self._renewed[node] = max(until_s, self._renewed.get(node, until_s))

    def end(self, node: str) -> None:
        """End every connection of a node."""
        for port, peer in self._peers.items():
            if peer.node == node:
                self._trials[port].stop()

    async def run(self) -> None:
        """Serve until cancelled."""
        loop = asyncio.get_running_loop()
        with self._listener:
            async with asyncio.TaskGroup() as connections:
                while True:
                    try:
                        sock, address = await loop.sock_accept(self._listener)
                    except OSError as err:
                        _log.warning("cannot accept", why=str(err))
                        await asyncio.sleep(_BREATH_S)
                        continue
                    connections.create_task(self._serve(sock, address[0].removeprefix("::ffff:")))

    async def _serve(self, sock: socket.socket, address: str) -> None:
        """Take one connection from accept to close; a peer's fault never gets out of here."""
        limits = self._limits
        with ExitStack() as held:
            held.callback(sock.close)
            try:
                with self._shaking_hands(address):
                    found = await self._known(sock, address)
            except (OSError, EOFError) as err:  # ssl.SSLError and TimeoutError are OSErrors
                if why := _reason(err):
                    self._refused(address, why)
                return
            peer, reader, writer = found
            held.callback(writer.transport.abort)
            most = {"strangers": limits.strangers, address: limits.per_address}
            if peer.node:
                most = {f"node {peer.node}": limits.per_node}
            if not self._count(held, most):
                whose = f"of node {peer.node}" if peer.node else "without a certificate"
                self._refused(address, f"too many connections {whose} at once")
                return
            with suppress(OSError, TimeoutError):
                await self._relay(peer, reader, writer)

    @contextmanager
    def _shaking_hands(self, address: str) -> Iterator[None]:
        """Hold a place for a handshake, for which the slowest peer gives way.

        Nobody is known before its handshake, so nodes share these places with strangers: a full house
        must not keep nodes out, and an honest handshake is over long before it is the oldest.
        """
        ours = [task for task, theirs in self._handshakes.items() if theirs == address]
        if len(ours) >= self._limits.per_address:
            self._give_way(ours[0])
        elif len(self._handshakes) >= self._limits.handshakes:
            self._give_way(next(iter(self._handshakes)))
        task = asyncio.current_task()
        assert task is not None
        self._handshakes[task] = address
        try:
            yield
        finally:
            self._handshakes.pop(task, None)

    def _give_way(self, task: asyncio.Task[None]) -> None:
        self._refused(self._handshakes.pop(task), "its TLS handshake took long and others waited")
        task.cancel()

    def _count(self, held: ExitStack, most: dict[str, int]) -> bool:
        """Count a connection under each key while `held` is open; False, uncounted, if one is at its most."""
        if any(self._held[key] >= limit for key, limit in most.items()):
            return False
        self._held.update(most.keys())
        held.callback(self._uncount, tuple(most))
        return True

    def _uncount(self, keys: tuple[str, ...]) -> None:
        self._held.subtract(keys)
        for key in keys:
            if not self._held[key]:
                del self._held[key]

    async def _known(
        self, sock: socket.socket, address: str
    ) -> tuple[Peer, asyncio.StreamReader, asyncio.StreamWriter]:
        """Return who it is; OSError or EOFError when it is let go of without a word to the inner server."""
        _keep_alive(sock, self._limits.silence_s)
        async with asyncio.timeout(self._limits.handshake_s):
            first = await _first_bytes(sock)
            if not first:
                raise EOFError  # a probe of the port, such as a load balancer's
            if first.startswith(_HANDSHAKE_RECORD):
                reader, writer = await self._streams(sock, self._context)
                return _of_certificate(writer, address), reader, writer
        self._refused(address, "it spoke plain text; this port speaks TLS only")
        if not first.startswith(_HTTP2):
            with suppress(OSError):
                sock.send(_PLAIN_ANSWER)
            raise EOFError
        reader, writer = await self._streams(sock, None)
        return Peer(address=address, is_plain=True, expires_at_s=wall_s() + _PLAIN_S), reader, writer

    async def _streams(
        self, sock: socket.socket, context: ssl.SSLContext | None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        loop = asyncio.get_running_loop()
        reader = asyncio.StreamReader(limit=PIECE_BYTES, loop=loop)
        protocol = asyncio.StreamReaderProtocol(reader, loop=loop)
        limits = (
            {}
            if context is None
            else {"ssl_handshake_timeout": self._limits.handshake_s, "ssl_shutdown_timeout": _CLOSE_S}
        )
        own = socket.socket(fileno=sock.detach())  # from here on the transport's to close
        transport, _ = await loop.connect_accepted_socket(lambda: protocol, own, ssl=context, **limits)
        return reader, asyncio.StreamWriter(transport, protocol, reader, loop)

    async def _relay(self, peer: Peer, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Carry bytes both ways until one side ends, or the peer's time is over."""
        inner_reader, inner_writer = await asyncio.open_connection(
            "127.0.0.1", self._inner_port, limit=PIECE_BYTES
        )
        port: int = inner_writer.get_extra_info("sockname")[1]
        self._peers[port] = peer  # before any byte of it
        trial = self._trials[port] = Trial(
            most_bytes=self._limits.unproven_bytes, within_s=self._limits.unproven_s
        )
        if peer.node:
            trial.end()
        try:
            await until_first_ends(
                trial.pump(reader, inner_writer),
                pump(inner_reader, writer),
                trial.time(),
                self._time_of(peer),
            )
        finally:
            del self._peers[port], self._trials[port]  # while the port is still ours
            inner_writer.close()
        try:
            writer.close()
            async with asyncio.timeout(_CLOSE_S):  # for what is on its way
                await asyncio.gather(writer.wait_closed(), inner_writer.wait_closed(), return_exceptions=True)
        finally:
            inner_writer.transport.abort()

    async def _time_of(self, peer: Peer) -> None:
        """Wait until the newest certificate of the peer's node ends; for ever without one."""
        if peer.expires_at_s is None:
            await asyncio.Event().wait()
            return
        ends_at_s = peer.expires_at_s
        while (left_s := max(ends_at_s, self._renewed.get(peer.node, 0.0)) - wall_s()) > 0:  # noqa: ASYNC110
            await asyncio.sleep(left_s)


async def _first_bytes(sock: socket.socket) -> bytes:
    """Wait for the first bytes and leave them where they are."""
    loop = asyncio.get_running_loop()
    readable = asyncio.Event()
    loop.add_reader(sock, readable.set)
    try:
        await readable.wait()
    finally:
        loop.remove_reader(sock)
    return sock.recv(len(_HTTP2), socket.MSG_PEEK)


def _keep_alive(sock: socket.socket, silence_s: int) -> None:
    """Have the kernel give up a peer that is gone without a word."""
    sock.setblocking(False)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE, max(silence_s // 2, 1))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, max(silence_s // 6, 1))
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPCNT, 3)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, silence_s * 1000)


def _of_certificate(writer: asyncio.StreamWriter, address: str) -> Peer:
    """Return who the certificate names, which the handshake has verified; a stranger has none."""
    certificate = writer.get_extra_info("peercert")
    if not certificate:
        return Peer(address=address)
    return Peer(
        address=address,
        node=node_of(certificate.get("subjectAltName")),
        issued_at_s=issued_at_s(certificate["notBefore"]),
        expires_at_s=float(ssl.cert_time_to_seconds(certificate["notAfter"])),
    )


def _reason(err: OSError | EOFError) -> str:
    """Return why a handshake failed, in words; empty for a peer that just went away before it."""
    match err:
        case EOFError():
            return ""
        case ssl.SSLCertVerificationError(verify_message="certificate has expired"):
            return "its certificate has expired; the node needs a new join ticket"
        case ssl.SSLCertVerificationError(verify_message=message):
            return f"its certificate is not one of this manager's authority ({message})"
        case ssl.SSLError(reason="UNSUPPORTED_PROTOCOL"):
            return "it offers no TLS 1.3"
        case ssl.SSLError(reason=reason) if reason:
            return f"its TLS handshake failed: {reason.replace('_', ' ').lower()}"
        case TimeoutError() | ConnectionAbortedError():
            return "it did not finish its TLS handshake in time"
        case _:
            return "it broke off the TLS handshake, as one does that trusts another authority"
