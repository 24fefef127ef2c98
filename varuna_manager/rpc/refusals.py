"""Errors of our tree as gRPC status codes with the message a person reads, and back."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from difflib import get_close_matches
from typing import Any

import grpc

from varuna_runtime.spec.errors import (
    AccessRefused,
    Conflict,
    InvalidInput,
    NoManager,
    NotFound,
    StoreError,
    VarunaError,
)


class UnknownName(InvalidInput):
    """No job or node is called that."""

    def __init__(self, what: str, name: str, known: list[str]) -> None:
        near = get_close_matches(name, known, n=3)
        hint = (
            f"; did you mean {' or '.join(near)}?" if near else f"; known: {', '.join(known[-5:]) or 'none'}"
        )
        super().__init__(f"no {what} {name!r}{hint}")


_CODES: tuple[tuple[type[VarunaError], grpc.StatusCode], ...] = (
    (UnknownName, grpc.StatusCode.NOT_FOUND),
    (NotFound, grpc.StatusCode.NOT_FOUND),
    (InvalidInput, grpc.StatusCode.INVALID_ARGUMENT),
    (Conflict, grpc.StatusCode.FAILED_PRECONDITION),
    (StoreError, grpc.StatusCode.UNAVAILABLE),
)


@asynccontextmanager
async def refusals(context: grpc.aio.ServicerContext[Any, Any]) -> AsyncIterator[None]:
    """Answer with the status of whatever error of ours the body raises; AccessRefused is the guard's."""
    try:
        yield
    except AccessRefused:
        raise
    except VarunaError as err:
        code = next((c for kind, c in _CODES if isinstance(err, kind)), grpc.StatusCode.UNKNOWN)
        await context.abort(code, str(err))


def understood(err: grpc.RpcError, address: str, *, is_secured: bool) -> VarunaError:
    """Return what a call to the manager at `address` failed of, as an error of our tree."""
    code = getattr(err, "code", lambda: None)()
    details = getattr(err, "details", lambda: None)() or str(err)
    if code in (grpc.StatusCode.UNAUTHENTICATED, grpc.StatusCode.PERMISSION_DENIED):
        return AccessRefused(f"the manager at {address} refused: {details}")
    if is_secured and ("SSL_ERROR" in details or "Tls handshake" in details):
        return AccessRefused(
            f"whoever answers at {address} is not the manager that made this token, or has a new authority; "
            "ask its operator for a new token"
        )
    if code in (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED):
        reason = details.rpartition(": ")[2].strip(" )]").lower()  # the rest is gRPC's own history of it
        return NoManager(
            f"no manager answers at {address} ({reason}); see that it runs and that its port can be reached, "
            "or start one here with `varuna up`"
        )
    if code is grpc.StatusCode.DEADLINE_EXCEEDED:
        return NoManager(f"the manager at {address} does not answer in time; see its log")
    if code is grpc.StatusCode.NOT_FOUND:
        return NotFound(details)
    if code is grpc.StatusCode.INVALID_ARGUMENT:
        return InvalidInput(details)
    if code in (grpc.StatusCode.FAILED_PRECONDITION, grpc.StatusCode.ALREADY_EXISTS):
        return Conflict(details)
    return VarunaError(f"the manager at {address} failed: {details}")
