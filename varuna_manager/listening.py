"""How the manager listens: plain text on loopback, or TLS before a server that only this process reaches."""

import asyncio
import ipaddress
import socket
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import grpc
import structlog

from varuna_manager import serving
from varuna_manager.clock import Clock, wall_s
from varuna_manager.cloud.provider import PoolReading
from varuna_manager.config import ManagerConfig
from varuna_manager.consumer import Consumer
from varuna_manager.core.state import State
from varuna_manager.persistence import Database
from varuna_manager.pool_settings import AwsPool, CloudPool
from varuna_manager.rpc.doorbook import DoorBook
from varuna_manager.rpc.guarding import Guard
from varuna_manager.rpc.joins import JoinService
from varuna_manager.security import front, places
from varuna_manager.security.authority import Authority
from varuna_manager.security.desk import Desk
from varuna_manager.security.front import Certificate, Front
from varuna_manager.security.handover import HandOver
from varuna_manager.security.tokens import Tokens
from varuna_runtime.spec.errors import Conflict, InvalidInput
from varuna_runtime.wire.v1 import join_pb2_grpc

_log = structlog.get_logger()
_MAX_MESSAGE_BYTES = 64 * 2**20
_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.so_reuseport", 0),  # a second manager on the port must fail, not share it
    ("grpc.max_receive_message_length", _MAX_MESSAGE_BYTES),
    ("grpc.max_send_message_length", _MAX_MESSAGE_BYTES),
]
_STRANGER_OPTIONS: list[tuple[str, Any]] = [
    ("grpc.max_concurrent_streams", 100),  # of one connection; further calls wait at the caller's
    ("grpc.max_connection_idle_ms", 300_000),  # a connection without calls holds a place of others
    ("grpc.server_handshake_timeout_ms", 10_000),
]
_TICKET_S = 30.0
_FAR_AWAY = ("198.51.100.1", 9)  # an address for documentation: nothing is ever sent there


@dataclass(frozen=True, slots=True, kw_only=True)
class Bound:
    """The port is ours; nobody is served yet."""

    address: str  # HOST:PORT as listened on
    server: grpc.aio.Server | None  # plain text
    listener: socket.socket | None  # TLS


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """The gRPC server to put services on, and what stands before it."""

    address: str  # HOST:PORT as listened on
    advertised: str  # HOST:PORT that others dial
    server: grpc.aio.Server
    loop: asyncio.AbstractEventLoop
    desk: Desk | None = None
    book: DoorBook | None = None
    front: Front | None = None
    certificate: Certificate | None = None
    handovers: Mapping[str, HandOver] = field(default_factory=dict)  # by pool

    async def hand_over(self, pool: str, reading: PoolReading, state: State, now_s: float) -> None:
        """See that the machines of a fresh reading that have not joined find their tickets."""
        if (handover := self.handovers.get(pool)) is not None:
            joined = {name for name, node in state.nodes.items() if not node.is_gone}
            await handover.on_reading(reading, joined, now_s)

    def ticket(self, node: str) -> str:
        """Return a ticket for a node that we start, empty with plain text; from any other thread."""
        if self.desk is None:
            return ""
        made = asyncio.run_coroutine_threadsafe(self.desk.ticket(node, created_by="manager"), self.loop)
        return made.result(_TICKET_S)[1]

    async def keep(self) -> None:
        """Let peers in until cancelled; after the server was started."""
        if self.front is None or self.certificate is None:
            return
        async with asyncio.TaskGroup() as keeping:
            keeping.create_task(self.front.run())
            keeping.create_task(self.certificate.keep_fresh())


def bound(config: ManagerConfig) -> Bound:
    """Listen; with port 0 where the last manager of this home did, since its agents dial that address."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    last = serving.read(config.places)
    if config.port == 0 and last is not None and last.address.startswith(f"{host}:"):
        try:
            return _bound(config, int(last.address.rpartition(":")[2]), host)
        except Conflict as err:
            _log.warning("address lost", why=str(err))
    return _bound(config, config.port, host)


def door(bound: Bound, config: ManagerConfig, database: Database, consumer: Consumer, clock: Clock) -> Door:
    """Return what stands before the services; with TLS also what makes and checks tickets and tokens."""
    address = advertised(config, bound.address)
    if bound.listener is None:
        assert bound.server is not None
        return Door(
            address=bound.address, advertised=address, server=bound.server, loop=asyncio.get_running_loop()
        )
    authority = Authority.at(config.places.authority, wall_s())
    book = DoorBook(consumer, clock)
    desk = Desk(
        address=address,
        authority=authority,
        tokens=Tokens(database, clock.now_s),
        certificate_life_s=config.certificate_life_s,
        extend=lambda node, until_s: standing.extend(node, until_s),
        end=lambda node: standing.end(node),
    )
    certificate = Certificate(authority, config.places.server_pem)
    guard = Guard(
        lambda relayed: standing.peer(relayed),
        desk.tokens,
        book.refused,
        proven=lambda relayed: standing.prove(relayed),
    )
    server = grpc.aio.server(options=[*_OPTIONS, *_STRANGER_OPTIONS], interceptors=[guard])
    inner_port = server.add_insecure_port("127.0.0.1:0")
    standing = Front(bound.listener, certificate.context, inner_port=inner_port, refused=book.refused)
    join_pb2_grpc.add_JoinServicer_to_server(JoinService(desk, book), server)  # type: ignore[no-untyped-call]
    return Door(
        address=bound.address,
        advertised=address,
        server=server,
        loop=asyncio.get_running_loop(),
        desk=desk,
        book=book,
        front=standing,
        certificate=certificate,
        handovers={
            pool.name: HandOver(pool.name, places.opened(pool.handover, region=_region(pool)), desk)
            for pool in config.pools
            if isinstance(pool, CloudPool) and pool.handover
        },
    )


def _region(pool: CloudPool) -> str:
    return pool.region if isinstance(pool, AwsPool) else ""


def advertised(config: ManagerConfig, address: str) -> str:
    """Return the HOST:PORT that goes into tickets and tokens."""
    port = address.rpartition(":")[2]
    if config.advertise:
        host, colon, own_port = config.advertise.rpartition(":")
        is_whole = bool(colon) and own_port.isdigit() and (":" not in host or host.startswith("["))
        return config.advertise if is_whole else f"{_bracketed(config.advertise)}:{port}"
    if not _is_any(config.host):
        return address
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(_FAR_AWAY)
        except OSError as err:
            raise InvalidInput(
                f"advertise: cannot tell by which address others reach this machine ({err.strerror}); "
                "set advertise: HOST in manager.yaml"
            ) from err
        return f"{probe.getsockname()[0]}:{port}"


def _bound(config: ManagerConfig, port: int, host: str) -> Bound:
    if config.is_tls:
        listener = front.listen(config.host, port)
        return Bound(address=f"{host}:{listener.getsockname()[1]}", server=None, listener=listener)
    server = grpc.aio.server(options=_OPTIONS)
    try:
        found = server.add_insecure_port(f"{host}:{port}")
    except RuntimeError as err:
        raise Conflict(
            f"cannot listen on {host}:{port}: another process has the port, perhaps another manager, "
            f"or {config.host} is no address of this machine; end it, or choose another"
        ) from err
    return Bound(address=f"{host}:{found}", server=server, listener=None)


def _is_any(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_unspecified
    except ValueError:
        return False


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
