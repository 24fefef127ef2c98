"""The calls of the Client service about tickets and tokens."""

from typing import Any

import grpc

from varuna_manager.rpc.callers import user_or
from varuna_manager.rpc.doorbook import DoorBook
from varuna_manager.rpc.refusals import refusals
from varuna_manager.security.desk import Desk
from varuna_manager.security.ledger import TokenKind
from varuna_runtime.spec.errors import Conflict, InvalidInput
from varuna_runtime.wire.v1 import client_pb2

Context = grpc.aio.ServicerContext[Any, Any]
_WIRE_KIND = {TokenKind.JOIN: client_pb2.TokenKind.JOIN, TokenKind.USER: client_pb2.TokenKind.USER}


class TokenCalls:
    """Without a desk the manager speaks plain text, where tickets and tokens mean nothing."""

    def __init__(self, desk: Desk | None, book: DoorBook | None) -> None:
        self._desk = desk
        self._book = book

    async def CreateToken(  # noqa: N802
        self, request: client_pb2.CreateTokenRequest, context: Context
    ) -> client_pb2.CreateTokenReply:
        """Make a ticket or a token; the reply is the only place where its secret ever is."""
        async with refusals(context):
            desk, book = self._opened()
            by = user_or("")
            match request.kind:
                case client_pb2.TokenKind.JOIN:
                    token, text = await desk.ticket(request.name, created_by=by, ttl_s=request.ttl_s)
                case client_pb2.TokenKind.USER:
                    token, text = await desk.user_token(request.name, created_by=by, ttl_s=request.ttl_s)
                case kind:
                    raise InvalidInput(f"kind: seen {kind}, wanted JOIN or USER")
            book.token_made(by, f"{token.kind} {token.id} for {token.name}")
            return client_pb2.CreateTokenReply(token=text, id=token.id)

    async def Tokens(  # noqa: N802
        self, request: client_pb2.TokensRequest, context: Context
    ) -> client_pb2.TokensReply:
        """Return every ticket and token, without secrets."""
        async with refusals(context):
            desk, _ = self._opened()
            found = [
                client_pb2.TokenStatus(
                    id=token.id,
                    kind=_WIRE_KIND[token.kind],
                    name=token.name,
                    created_at=token.created_at_s,
                    expires_at=token.expires_at_s,
                    state=desk.tokens.state(token),
                    created_by=token.created_by,
                )
                for token in desk.tokens.all()
            ]
            return client_pb2.TokensReply(tokens=found)

    async def RevokeToken(  # noqa: N802
        self, request: client_pb2.RevokeTokenRequest, context: Context
    ) -> client_pb2.RevokeTokenReply:
        """Make a ticket or token useless at once, or all that a node has."""
        async with refusals(context):
            desk, book = self._opened()
            if request.node:
                await desk.bar(request.node)
                book.token_revoked(user_or(""), f"every ticket and certificate of node {request.node}")
                return client_pb2.RevokeTokenReply()
            token = await desk.tokens.revoke(request.id)
            book.token_revoked(user_or(""), f"{token.kind} {token.id} of {token.name}")
            return client_pb2.RevokeTokenReply()

    def _opened(self) -> tuple[Desk, DoorBook]:
        if self._desk is None or self._book is None:
            raise Conflict(
                "this manager speaks plain text and lets everyone in; set `security: tls` in manager.yaml "
                "to use tickets and tokens"
            )
        return self._desk, self._book
