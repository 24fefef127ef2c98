"""The TLS listener alone, before an echo in the place of the gRPC server."""

import asyncio
import socket
import ssl
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from varuna_manager.security.authority import Authority
from varuna_manager.security.front import Certificate, Front, Limits, Peer, listen
from varuna_runtime.agent.credentials import new_key, request_for
from varuna_runtime.spec.errors import Conflict
from varuna_runtime.wire.channels import SERVER_NAME

WAIT_S = 20.0


class Scene:
    """A listener, what is behind it, and what it told."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.authority = Authority.at(folder, time.time())
        self.refusals: list[str] = []
        self.peers: list[Peer | None] = []
        self.inside: set[asyncio.StreamWriter] = set()
        self.is_reading = asyncio.Event()
        self.is_reading.set()
        self.port = 0
        self.front: Front

    def client_context(self, node: str = "", life_s: float = 60.0) -> ssl.SSLContext:
        context = ssl.create_default_context(cadata=self.authority.ca_pem)
        context.set_alpn_protocols(["h2"])
        if node:
            key = new_key()
            issued = self.authority.issue(request_for(key), node, time.time(), life_s)
            path = self.folder / f"{node}.pem"
            path.write_text(key + issued.certificate_pem)
            context.load_cert_chain(path)
        return context

    async def dial(
        self, context: ssl.SSLContext | None = None
    ) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        made = context or self.client_context()
        return await asyncio.open_connection("127.0.0.1", self.port, ssl=made, server_hostname=SERVER_NAME)

    async def echo(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.inside.add(writer)
        host, port = writer.get_extra_info("peername")
        is_known = False
        try:
            while True:
                await self.is_reading.wait()
                piece = await reader.read(65536)
                if not is_known:
                    is_known = True
                    self.peers.append(self.front.peer(f"ipv4:{host}:{port}"))
                if not piece:
                    return
                writer.write(piece)
                await writer.drain()
        except ConnectionError:
            pass
        finally:
            self.inside.discard(writer)
            writer.close()


@asynccontextmanager
async def scene(folder: Path, limits: Limits | None = None) -> AsyncIterator[Scene]:
    made = Scene(folder)
    server = await asyncio.start_server(made.echo, "127.0.0.1", 0)
    listener = listen("127.0.0.1", 0)
    made.port = listener.getsockname()[1]
    certificate = Certificate(made.authority, folder / "server.pem")
    made.front = Front(
        listener,
        certificate.context,
        inner_port=server.sockets[0].getsockname()[1],
        refused=lambda address, why: made.refusals.append(f"{address}: {why}"),
        limits=limits,
    )
    running = asyncio.ensure_future(made.front.run())
    try:
        yield made
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert running.cancelled()
        await until(lambda: not made.inside)  # no connection outlives the listener
        server.close()
        await server.wait_closed()
        await until(lambda: len(asyncio.all_tasks()) <= 1)


async def until(claim: Callable[[], object]) -> None:
    async with asyncio.timeout(WAIT_S):
        while not claim():  # noqa: ASYNC110 - what is watched sets no event
            await asyncio.sleep(0.01)


def run(scenario: Awaitable[None]) -> None:
    async def bounded() -> None:
        async with asyncio.timeout(3 * WAIT_S):
            await scenario

    asyncio.run(bounded())


async def flood(writer: asyncio.StreamWriter, *, pieces: int) -> None:
    for _ in range(pieces):
        writer.write(bytes(1 << 20))
        await writer.drain()


async def shut(writer: asyncio.StreamWriter) -> None:
    writer.close()
    await asyncio.gather(writer.wait_closed(), return_exceptions=True)


def test_many_peers_at_once_get_their_own_bytes_back_and_leave_nothing(tmp_path: Path) -> None:
    async def one(place: Scene, context: ssl.SSLContext, number: int) -> None:
        reader, writer = await place.dial(context)
        message = bytes([number]) * 300_000
        writer.write(message)
        assert await reader.readexactly(len(message)) == message
        await shut(writer)

    async def scenario() -> None:
        async with scene(tmp_path, Limits(per_node=50)) as place:
            context = place.client_context("n1")
            await asyncio.gather(*(one(place, context, number) for number in range(50)))
            await until(lambda: not place.inside and not place.front._held and not place.front._peers)
            assert place.refusals == []

    run(scenario())


def test_who_it_is_is_known_before_the_first_byte(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as place:
            for context in (place.client_context("pool_0"), place.client_context()):
                reader, writer = await place.dial(context)
                writer.write(b"x")
                await reader.readexactly(1)
                await shut(writer)
            node, stranger = place.peers
            assert node is not None
            assert (node.node, node.address) == ("pool_0", "127.0.0.1")
            assert stranger == Peer(address="127.0.0.1")
            assert place.front.peer("ipv4:127.0.0.1:1") is None
            assert place.front.peer("unix:") is None

    run(scenario())


def test_a_server_that_does_not_read_slows_the_peer_down_and_nothing_piles_up(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as place:
            place.is_reading.clear()
            reader, writer = await place.dial(place.client_context("n1"))
            sending = asyncio.ensure_future(flood(writer, pieces=64))
            await until(lambda: writer.transport.get_write_buffer_size() > 0)
            _, still = await asyncio.wait({sending}, timeout=1.0)
            assert still, "64 MiB went somewhere, though nobody reads"
            place.is_reading.set()
            assert len(await reader.readexactly(64 << 20)) == 64 << 20
            await sending
            await shut(writer)

    run(scenario())


def test_a_connection_ends_with_its_certificate(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as place:
            reader, writer = await place.dial(place.client_context("n1", life_s=2.0))
            assert await reader.read() == b""
            await shut(writer)
            assert place.refusals == []

    run(scenario())


def test_a_renewed_certificate_lets_the_connection_of_its_node_last(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as place:
            renewed = await place.dial(place.client_context("n1", life_s=2.0))
            other = await place.dial(place.client_context("n2", life_s=2.0))
            place.front.extend("n1", time.time() + 60.0)
            assert await other[0].read() == b""  # its time is over, and so would be that of n1
            renewed[1].write(b"still here")
            assert await renewed[0].readexactly(10) == b"still here"
            await shut(renewed[1])
            await shut(other[1])

    run(scenario())


def test_peers_that_say_nothing_or_nonsense_are_let_go_of_with_a_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, Limits(handshake_s=0.5)) as place:
            silent = await asyncio.open_connection("127.0.0.1", place.port)
            half = await asyncio.open_connection("127.0.0.1", place.port)
            half[1].write(b"\x16\x03\x01\x02\x00\x01")
            probe = await asyncio.open_connection("127.0.0.1", place.port)
            await shut(probe[1])
            for reader, writer in (silent, half):
                assert await reader.read() == b""
                await shut(writer)
            assert place.refusals == ["127.0.0.1: it did not finish its TLS handshake in time"] * 2

    run(scenario())


def test_an_old_version_of_tls_is_refused_with_the_reason(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path) as place:
            old = place.client_context()
            old.maximum_version = ssl.TLSVersion.TLSv1_2
            with pytest.raises(OSError):  # noqa: PT011 - an alert or a reset, as the kernel has it
                await place.dial(old)
            await until(lambda: place.refusals == ["127.0.0.1: it offers no TLS 1.3"])

    run(scenario())


def test_strangers_are_bounded_and_do_not_keep_nodes_out(tmp_path: Path) -> None:
    async def scenario() -> None:
        async with scene(tmp_path, Limits(strangers=4, per_address=4, per_node=2)) as place:
            held = []
            for context in [place.client_context("n1"), *[place.client_context()] * 4]:
                held.append(await place.dial(context))
            await until(lambda: len(place.inside) == 5)
            reader, writer = await place.dial()
            assert await reader.read() == b""
            await shut(writer)
            await until(lambda: any("too many connections without" in why for why in place.refusals))
            await shut(held.pop()[1])
            await until(lambda: len(place.inside) == 4)
            held += [await place.dial(place.client_context("n1"))]
            await until(lambda: len(place.inside) == 5)
            surplus = await place.dial(place.client_context("n1"))
            assert await surplus[0].read() == b""
            await until(lambda: any("of node n1 at once" in why for why in place.refusals))
            for _, writer in [*held, surplus]:
                await shut(writer)

    run(scenario())


@pytest.mark.parametrize("per_address", [3, 99])
def test_handshakes_that_dawdle_keep_nobody_out(tmp_path: Path, per_address: int) -> None:
    async def scenario() -> None:
        limits = Limits(handshakes=3, per_address=per_address, handshake_s=3 * WAIT_S)
        async with scene(tmp_path, limits) as place:
            silent = [await asyncio.open_connection("127.0.0.1", place.port) for _ in range(5)]
            reader, writer = await place.dial(place.client_context("n1"))
            writer.write(b"here")
            assert await reader.readexactly(4) == b"here"
            assert [await reader.read() for reader, _ in silent[:3]] == [b""] * 3  # the oldest made room
            assert any("its TLS handshake took long" in why for why in place.refusals)
            for _, other in [*silent, (reader, writer)]:
                await shut(other)

    run(scenario())


def test_a_stranger_has_little_to_say_and_little_time_until_it_has_proved_itself(tmp_path: Path) -> None:
    async def scenario() -> None:
        limits = Limits(unproven_bytes=1000, unproven_s=3 * WAIT_S)
        async with scene(tmp_path, limits) as place:
            reader, writer = await place.dial()
            writer.write(b"x" * 5000)
            assert await reader.readexactly(1000) == b"x" * 1000
            with pytest.raises(TimeoutError):
                async with asyncio.timeout(0.1):
                    await reader.read(1)
            (inside,) = place.inside
            place.front.prove(f"ipv4:127.0.0.1:{inside.get_extra_info('peername')[1]}")
            assert await reader.readexactly(4000) == b"x" * 4000
            await shut(writer)
        async with scene(tmp_path, Limits(unproven_bytes=1000, unproven_s=0.2)) as place:
            node_reader, node = await place.dial(place.client_context("n1"))
            reader, writer = await place.dial()
            assert await reader.read() == b""
            node.write(b"y" * 5000)
            assert await node_reader.readexactly(5000) == b"y" * 5000
            await shut(writer)
            await shut(node)

    run(scenario())


def test_a_port_in_use_is_a_conflict() -> None:
    with listen("127.0.0.1", 0) as first, pytest.raises(Conflict, match="choose another port"):
        listen("127.0.0.1", first.getsockname()[1])


def test_the_renewed_server_certificate_is_used_for_new_connections(tmp_path: Path) -> None:
    authority = Authority.at(tmp_path, time.time())
    certificate = Certificate(authority, tmp_path / "server.pem")
    listener = socket.create_server(("127.0.0.1", 0))

    async def shown() -> bytes:
        async def accept() -> None:
            sock, _ = await asyncio.get_running_loop().sock_accept(listener)
            await asyncio.get_running_loop().connect_accepted_socket(
                asyncio.Protocol, sock, ssl=certificate.context
            )

        accepting = asyncio.ensure_future(accept())
        context = ssl.create_default_context(cadata=authority.ca_pem)
        port = listener.getsockname()[1]
        _, writer = await asyncio.open_connection("127.0.0.1", port, ssl=context, server_hostname=SERVER_NAME)
        await accepting
        found: bytes = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
        await shut(writer)
        return found

    async def scenario() -> None:
        first = await shown()
        assert await shown() == first
        certificate._renew()
        assert await shown() != first

    listener.setblocking(False)
    with listener:
        run(scenario())
