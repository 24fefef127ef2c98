"""Errors of our tree as gRPC status codes with the message a person reads."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from difflib import get_close_matches
from typing import Any

import grpc

from varuna_runtime.spec.errors import (
    AccessRefused,
    Conflict,
    InvalidInput,
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
