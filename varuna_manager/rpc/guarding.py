"""Lets each peer call what it may: nodes AgentLink, users Client, anyone Join and Health."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import aclosing
from inspect import isasyncgen
from typing import Any

import grpc
import structlog

from varuna_manager.rpc.callers import Caller, calling
from varuna_manager.security.front import Peer, Refused
from varuna_manager.security.ledger import Token
from varuna_manager.security.tokens import Tokens
from varuna_runtime.spec.errors import AccessRefused

_log = structlog.get_logger()
_HEALTH = "grpc.health.v1.Health"
_JOIN, _AGENTS, _CLIENTS = "varuna.v1.Join", "varuna.v1.AgentLink", "varuna.v1.Client"

Context = grpc.aio.ServicerContext[Any, Any]
Handler = Any  # the stubs know the handlers of the blocking server only
Behaviour = Callable[[Any, Context], Any]


class Guard(grpc.aio.ServerInterceptor):  # type: ignore[type-arg]  # no generic when it runs
    """Stands before every call of a manager that speaks TLS."""

    def __init__(
        self,
        peer: Callable[[str], Peer | None],
        tokens: Tokens,
        refused: Refused,
        *,
        proven: Callable[[str], None],
    ) -> None:
        self._peer = peer
        self._proven = proven
        self._tokens = tokens
        self._refused = refused

    async def intercept_service(
        self,
        continuation: Callable[[grpc.HandlerCallDetails], Awaitable[Handler]],
        handler_call_details: grpc.HandlerCallDetails,
    ) -> Handler:
        """Return the call's handler with the checks before it."""
        handler = await continuation(handler_call_details)
        service = handler_call_details.method.strip("/").rpartition("/")[0]
        return handler if handler is None else self._guarded(handler, service)

    def _guarded(self, handler: Handler, service: str) -> Handler:
        """Return the handler as one of a stream of requests: gRPC then reads none before we ask for it."""
        codec = (handler.request_deserializer, handler.response_serializer)
        match handler.request_streaming, handler.response_streaming:
            case False, False:
                one = self._answering(handler.unary_unary, service, is_stream=False)
                return grpc.stream_unary_rpc_method_handler(one, *codec)
            case True, False:
                one = self._answering(handler.stream_unary, service, is_stream=True)
                return grpc.stream_unary_rpc_method_handler(one, *codec)
            case False, True:
                many = self._streaming(handler.unary_stream, service, is_stream=False)
                return grpc.stream_stream_rpc_method_handler(many, *codec)
            case _:
                many = self._streaming(handler.stream_stream, service, is_stream=True)
                return grpc.stream_stream_rpc_method_handler(many, *codec)

    def _answering(self, behaviour: Behaviour, service: str, *, is_stream: bool) -> Behaviour:
        async def call(requests: Any, context: Context) -> Any:
            token = await self._enter(context, service)
            request = requests if is_stream else await _only(requests, context, token)
            try:
                return await behaviour(request, context)
            except AccessRefused as err:
                await self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, str(err))

        return call

    def _streaming(self, behaviour: Behaviour, service: str, *, is_stream: bool) -> Behaviour:
        async def call(requests: Any, context: Context) -> None:
            token = await self._enter(context, service)
            request = requests if is_stream else await _only(requests, context, token)
            try:
                if token is None:
                    await _written(behaviour(request, context), context)
                else:
                    await self._while_valid(_written(behaviour(request, context), context), token)
            except AccessRefused as err:
                await self._refuse(context, grpc.StatusCode.PERMISSION_DENIED, str(err))

        return call

    async def _enter(self, context: Context, service: str) -> Token | None:
        """Find out who calls and whether they may; ends the call if not."""
        try:
            caller, token = self._caller(context, service)
        except AccessRefused as err:
            await self._refuse(context, grpc.StatusCode.UNAUTHENTICATED, str(err))
        calling.set(caller)
        return token

    def _caller(self, context: Context, service: str) -> tuple[Caller, Token | None]:
        peer = self._peer(context.peer())
        if peer is None:
            if service == _HEALTH:
                return Caller(address=context.peer()), None
            raise AccessRefused("this port is the manager's own; call the address it tells")
        if peer.is_plain:
            raise AccessRefused(
                "the manager speaks TLS only; users need a token (`varuna login`), agents a ticket (--join)"
            )
        caller = Caller(address=peer.address, node=peer.node)
        if service in (_HEALTH, _JOIN):
            return caller, None
        if service == _AGENTS:
            if not peer.node:
                raise AccessRefused("agents need a certificate; start with --join and a join ticket first")
            if self._tokens.is_barred(peer.node, peer.issued_at_s):
                raise AccessRefused(f"the certificate of node {peer.node} is revoked; it needs a new ticket")
            return caller, None
        if service != _CLIENTS:
            raise AccessRefused(f"nobody may call {service}")
        token = self._token(context)
        self._proven(context.peer())
        return Caller(address=peer.address, user=token.name), token

    def _token(self, context: Context) -> Token:
        given = _header(context.invocation_metadata() or (), "authorization")
        scheme, _, bearer = given.partition(" ")
        id, _, secret = bearer.partition(".")
        if scheme.lower() != "bearer" or not secret:
            raise AccessRefused("users need a token; store yours with `varuna login`, or set VARUNA_TOKEN")
        return self._tokens.admitted_user(id, secret)

    async def _while_valid(self, body: Awaitable[None], token: Token) -> None:
        """Let a stream run until its end, or that of its token."""
        serving = asyncio.ensure_future(body)
        ending = asyncio.ensure_future(self._tokens.until_over(token.id))
        try:
            await asyncio.wait((serving, ending), return_when=asyncio.FIRST_COMPLETED)
            if not serving.done():
                raise AccessRefused(f"user token {token.id} of {token.name} is {ending.result()}")
            serving.result()
        finally:
            serving.cancel()
            ending.cancel()
            await asyncio.gather(serving, ending, return_exceptions=True)

    async def _refuse(self, context: Context, code: grpc.StatusCode, why: str) -> None:
        peer = self._peer(context.peer())
        if peer is None:  # another process of this machine, or a connection that has just ended
            _log.warning("refused", peer=context.peer(), why=why)
        elif not peer.is_plain:  # the listener has told that already
            self._refused(peer.address, why)
        await context.abort(code, why)


async def _only(requests: AsyncIterator[Any], context: Context, token: Token | None) -> Any:
    """Return the one request of a call; of a user it names the token's, whatever it claims."""
    request = await anext(requests, None)
    if request is None:
        await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the call carried no request")
    if token is not None and "user" in request.DESCRIPTOR.fields_by_name:
        request.user = token.name
    return request


async def _written(result: Any, context: Context) -> None:
    """Send what a handler of a stream makes, whichever of gRPC's two ways it uses."""
    if not isasyncgen(result):
        await result
        return
    async with aclosing(result) as messages:
        async for message in messages:
            await context.write(message)


def _header(metadata: Iterable[Any], name: str) -> str:
    return next((str(value) for key, value in metadata if key == name), "")
