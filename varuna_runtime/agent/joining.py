"""How this agent reaches its manager: joins with a ticket once, then renews its certificate by itself."""

import asyncio
import socket
from collections.abc import Callable
from contextlib import closing
from typing import Any

import grpc
import structlog

from varuna_runtime.agent import clock, tickets
from varuna_runtime.agent.config import AgentConfig
from varuna_runtime.agent.credentials import Credentials, Wallet, new_key, request_for
from varuna_runtime.agent.link import CHANNEL_OPTIONS
from varuna_runtime.agent.tickets import TicketSource, TicketUnavailable
from varuna_runtime.spec.errors import AccessRefused, InvalidInput
from varuna_runtime.spec.tickets import JoinTicket, join_ticket
from varuna_runtime.wire.channels import Access, open_aio_channel, refuse_plain
from varuna_runtime.wire.v1 import agent_pb2, agent_pb2_grpc, join_pb2, join_pb2_grpc

_log = structlog.get_logger("varuna.agent")
_CALL_S = 10.0
_ASK_S = 60.0  # one question to wherever tickets are
_BACK_OFF_S = (0.5, 10.0)
_LONGEST_NAP_S = 30.0  # the wall clock may be set meanwhile
_REFUSALS = frozenset(
    {
        grpc.StatusCode.UNAUTHENTICATED,
        grpc.StatusCode.PERMISSION_DENIED,
        grpc.StatusCode.INVALID_ARGUMENT,
        grpc.StatusCode.UNIMPLEMENTED,
    }
)


class Door:
    """The manager's address and what opens it; a renewed certificate counts from the next channel on."""

    def __init__(self, address: str, credentials: Credentials | None = None) -> None:
        self.address = address
        self.credentials = credentials

    def channel(self) -> grpc.aio.Channel:
        """Return a new channel to the manager; the caller closes it."""
        return open_aio_channel(self.address, _access(self.credentials), CHANNEL_OPTIONS)


class Joining:
    """Gets and keeps the credentials of one node."""

    def __init__(self, config: AgentConfig) -> None:
        self._node = config.node
        self._address = config.manager  # empty: as the ticket says
        self._wallet = Wallet(config.home / "identity")
        self._source = tickets.opened(config.join) if config.join else None
        self._may_be_plain = config.insecure_plaintext
        self._refused: str = ""  # id of the last ticket that the manager did not take

    async def door(self) -> Door:
        """Return the way to the manager, joined if need be; AccessRefused, InvalidInput: it cannot be.

        A ticket that was not spent yet goes before credentials that are kept. Where tickets are handed
        over it is asked for only if there are none.
        """
        known = self._wallet.credentials()
        if known is not None and known.node != self._node:
            raise InvalidInput(
                f"{self._wallet.path} is of node {known.node}, not of {self._node}; every node needs its own "
                "home, or start with --node " + known.node
            )
        if self._source is None:
            return self._unasked(known)
        is_good = known is not None and clock.unix_s() < known.expires_at_s
        if is_good and self._source.waits:
            return self._door(known)
        ticket = await self._ticket(self._source)
        if known is not None and is_good and (ticket is None or ticket.id == known.ticket):
            return self._door(known)
        while ticket is not None:
            try:
                return self._door(await self._joined(ticket))
            except AccessRefused as err:
                if not self._source.waits:
                    raise
                _log.warning("ticket refused", node=self._node, ticket=ticket.id, why=str(err))
                self._refused = ticket.id
            ticket = await self._ticket(self._source)
        raise InvalidInput("--join: no join ticket there; make one with `varuna token create --node NAME`")

    async def keep_fresh(self, door: Door) -> None:
        """Renew at two thirds of a certificate's life until cancelled; AccessRefused: it has expired."""
        while (credentials := door.credentials) is not None:
            now_s = clock.unix_s()
            if now_s >= credentials.expires_at_s:
                _log.warning("certificate expired", node=self._node)
                if self._source is None or not self._source.waits:
                    raise _expired(credentials)
                door.credentials = (await self.door()).credentials
            elif now_s >= credentials.renew_at_s:
                await self._try_to_renew(door, credentials)
            else:
                await asyncio.sleep(min(_LONGEST_NAP_S, credentials.renew_at_s - now_s))

    def _unasked(self, known: Credentials | None) -> Door:
        if known is None:
            if not self._address:
                raise InvalidInput("no manager: give --manager HOST:PORT, or --join with a join ticket")
            if not self._may_be_plain:
                refuse_plain(self._address, "a join ticket (--join)")
            return Door(self._address)
        if clock.unix_s() >= known.expires_at_s:
            raise _expired(known)
        return self._door(known)

    def _door(self, credentials: Credentials | None) -> Door:
        assert credentials is not None
        return Door(self._address or credentials.manager, credentials)

    async def _ticket(self, source: TicketSource) -> JoinTicket | None:
        """Return the ticket; where they are handed over, wait for one that was not refused."""
        pause_s, why = _BACK_OFF_S[0], ""
        while True:
            try:
                async with asyncio.timeout(_ASK_S):
                    text = await asyncio.to_thread(source.read, self._node)
                found, trouble = (join_ticket(text) if text else None), "none there yet"
            except (TicketUnavailable, TimeoutError) as err:
                found, trouble = None, str(err) or f"no answer in {_ASK_S:g} s"
            except InvalidInput:
                if not source.waits:
                    raise
                found, trouble = None, "what is there is no ticket"
            if not source.waits or (found is not None and found.id != self._refused):
                return found
            if trouble != why:
                _log.info("waiting for a join ticket", node=self._node, why=trouble)
            why = trouble
            await asyncio.sleep(pause_s)
            pause_s = min(_BACK_OFF_S[1], pause_s * 1.5)

    async def _joined(self, ticket: JoinTicket) -> Credentials:
        """Spend the ticket, asking for as long as no manager answers; AccessRefused when it is not taken."""
        if ticket.node != self._node:
            raise AccessRefused(
                f"the join ticket is for node {ticket.node}, this is {self._node}; start with --node "
                f"{ticket.node}, or make a ticket for {self._node}"
            )
        address = self._address or ticket.manager
        key_pem = await asyncio.to_thread(self._wallet.key_for, ticket.id)
        request = join_pb2.JoinRequest(
            token_id=ticket.id, secret=ticket.secret, node=self._node, csr_pem=request_for(key_pem)
        )
        pause_s = _BACK_OFF_S[0]
        while True:
            try:
                reply = await _asked(address, Access(ca_pem=ticket.ca), _join(request))
                break
            except grpc.aio.AioRpcError as err:
                if err.code() in _REFUSALS:
                    raise AccessRefused(
                        f"the manager at {address} refused to let us join: {err.details()}"
                    ) from err
                _log.info("cannot join yet", manager=address, reason=f"{err.code().name}: {err.details()}")
            await asyncio.sleep(pause_s)
            pause_s = min(_BACK_OFF_S[1], pause_s * 2)
        made = _credentials(
            reply.certificate, node=self._node, manager=ticket.manager, key_pem=key_pem, ticket=ticket.id
        )
        await asyncio.to_thread(self._wallet.keep, made)
        _log.info("joined", node=self._node, manager=address, ticket=ticket.id)
        return made

    async def _try_to_renew(self, door: Door, old: Credentials) -> None:
        key_pem = await asyncio.to_thread(new_key)
        request = agent_pb2.RenewRequest(csr_pem=request_for(key_pem))
        try:
            reply = await _asked(door.address, _access(old), _renew(request))
        except grpc.aio.AioRpcError as err:
            _log.warning("cannot renew", node=self._node, reason=f"{err.code().name}: {err.details()}")
            await asyncio.sleep(min(_LONGEST_NAP_S, max(0.2, (old.expires_at_s - clock.unix_s()) / 20)))
            return
        made = _credentials(reply, node=self._node, manager=old.manager, key_pem=key_pem, ticket=old.ticket)
        await asyncio.to_thread(self._wallet.keep, made)
        door.credentials = made
        _log.info("renewed", node=self._node)


def own_address(manager: str) -> str:
    """Return this machine's address on the interface that reaches the manager; nothing is sent.

    InvalidInput when there is no way to it.
    """
    host, _, port = manager.rpartition(":")
    host = host.strip("[]")
    try:
        family, _, _, _, address = socket.getaddrinfo(host, int(port), type=socket.SOCK_DGRAM)[0]
        with closing(socket.socket(family, socket.SOCK_DGRAM)) as probe:
            probe.connect(address)
            return str(probe.getsockname()[0])
    except OSError as err:
        raise InvalidInput(
            f"manager {manager}: no way to it from here ({err.strerror or err}); give its address, and this "
            "node's own with --host"
        ) from err


async def _asked(address: str, access: Access | None, call: Callable[[grpc.aio.Channel], Any]) -> Any:
    async with open_aio_channel(address, access, CHANNEL_OPTIONS) as channel:
        return await call(channel)


def _join(request: join_pb2.JoinRequest) -> Callable[[grpc.aio.Channel], Any]:
    stub: Any = join_pb2_grpc.JoinStub
    return lambda channel: stub(channel).Join(request, timeout=_CALL_S)


def _renew(request: agent_pb2.RenewRequest) -> Callable[[grpc.aio.Channel], Any]:
    stub: Any = agent_pb2_grpc.AgentLinkStub
    return lambda channel: stub(channel).Renew(request, timeout=_CALL_S)


def _access(credentials: Credentials | None) -> Access | None:
    if credentials is None:
        return None
    return Access(
        ca_pem=credentials.ca_pem, certificate_pem=credentials.certificate_pem, key_pem=credentials.key_pem
    )


def _credentials(
    certificate: agent_pb2.Certificate, *, node: str, manager: str, key_pem: str, ticket: str
) -> Credentials:
    now_s = clock.unix_s()
    return Credentials(
        node=node,
        manager=manager,
        ca_pem=certificate.ca_pem.decode(),
        certificate_pem=certificate.certificate_pem.decode(),
        key_pem=key_pem,
        ticket=ticket,
        renew_at_s=now_s + certificate.expires_in_s * 2 / 3,
        expires_at_s=now_s + certificate.expires_in_s,
    )


def _expired(credentials: Credentials) -> AccessRefused:
    return AccessRefused(
        f"the certificate of node {credentials.node} has expired; make a join ticket on the manager "
        f"(varuna token create --node {credentials.node}) and start the agent with --join"
    )
