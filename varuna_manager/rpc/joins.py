"""The Join service: a ticket becomes a certificate. The one call that a stranger may make."""

from typing import Any

import grpc

from varuna_manager.clock import wall_s
from varuna_manager.rpc.doorbook import DoorBook
from varuna_manager.rpc.refusals import refusals
from varuna_manager.security.authority import Issued
from varuna_manager.security.desk import Desk
from varuna_runtime.wire.v1 import agent_pb2, join_pb2, join_pb2_grpc

Context = grpc.aio.ServicerContext[Any, Any]


class JoinService(join_pb2_grpc.JoinServicer):
    """`book` hears of every machine that was let in."""

    def __init__(self, desk: Desk, book: DoorBook) -> None:
        self._desk = desk
        self._book = book

    async def Join(self, request: join_pb2.JoinRequest, context: Context) -> join_pb2.JoinReply:  # noqa: N802
        """Spend a ticket; AccessRefused is told by whoever guards the calls."""
        async with refusals(context):
            issued = await self._desk.joined(request.token_id, request.secret, request.node, request.csr_pem)
            self._book.enrolled(request.node, request.token_id)
            return join_pb2.JoinReply(certificate=certificate(issued, self._desk.authority.ca_pem))


def certificate(issued: Issued, ca_pem: str) -> agent_pb2.Certificate:
    """Return the message for a certificate."""
    return agent_pb2.Certificate(
        certificate_pem=issued.certificate_pem.encode(),
        ca_pem=ca_pem.encode(),
        expires_in_s=issued.expires_at_s - wall_s(),
    )
