"""What an error of Azure means for us: by its code, since a failed operation arrives with HTTP status 200."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from azure.core.exceptions import (
    AzureError,
    ClientAuthenticationError,
    DeserializationError,
    HttpResponseError,
    ServiceRequestError,
    ServiceResponseError,
)

from varuna_manager.cloud.provider import ProviderError, Trouble

_BY_CODE: Final = {
    "AllocationFailed": Trouble.CAPACITY,
    "ZonalAllocationFailed": Trouble.CAPACITY,
    "OverconstrainedAllocationRequest": Trouble.CAPACITY,
    "OverconstrainedZonalAllocationRequest": Trouble.CAPACITY,
    "SkuNotAvailable": Trouble.CAPACITY,
    "SpotPriceGreaterThanProvidedMaxPrice": Trouble.CAPACITY,
    "QuotaExceeded": Trouble.QUOTA,
    "AuthorizationFailed": Trouble.AUTH,
    "LinkedAuthorizationFailed": Trouble.AUTH,
    "ScopeLocked": Trouble.CONFIG,  # of status 409, but it does not pass by itself; so the next two
    "MissingSubscriptionRegistration": Trouble.CONFIG,
    "ReadOnlyDisabledSubscription": Trouble.CONFIG,
    "TooManyRequests": Trouble.THROTTLED,
    "OperationPreempted": Trouble.RETRY,
    "InternalExecutionError": Trouble.RETRY,
    "InternalServerError": Trouble.RETRY,
    "InternalOperationError": Trouble.RETRY,
}
_BY_STATUS: Final = {
    401: Trouble.AUTH,
    403: Trouble.AUTH,
    404: Trouble.CONFIG,
    400: Trouble.CONFIG,
    408: Trouble.RETRY,
    409: Trouble.RETRY,
    412: Trouble.RETRY,
    429: Trouble.THROTTLED,
}


def trouble_of(status: int | None, codes: Sequence[str], message: str) -> Trouble:
    """Return the kind of an answer; `codes` are the error's own and those of its details."""
    if status == 429:  # the code says OperationNotAllowed then, as for a quota
        return Trouble.THROTTLED
    for code in codes:
        if code in _BY_CODE:
            return _BY_CODE[code]
        if code == "OperationNotAllowed" and any(w in message.lower() for w in ("quota", "limit")):
            return Trouble.QUOTA
    if status is None:
        return Trouble.UNKNOWN
    return Trouble.RETRY if status >= 500 else _BY_STATUS.get(status, Trouble.UNKNOWN)


@contextmanager
def told(deed: str) -> Iterator[None]:
    """Turn errors of the SDK into ProviderError that says what could not be done."""
    try:
        yield
    except AzureError as err:
        raise provider_error(deed, err) from err


def provider_error(deed: str, err: AzureError) -> ProviderError:
    """Return our error for one of the SDK."""
    if isinstance(err, HttpResponseError) and err.response is not None:
        codes = _codes(err.error)
        text = _message(err)
        is_refused = isinstance(err, ClientAuthenticationError)  # of status 400 if a secret is wrong
        trouble = Trouble.AUTH if is_refused else trouble_of(err.status_code, codes, text)
        said = f"{'/'.join(codes)}: {text}" if codes else text
        return ProviderError(f"{deed}: {said}", trouble=trouble, retry_after_s=_retry_after_s(err))
    if isinstance(err, ClientAuthenticationError):
        return ProviderError(f"{deed}: no credentials: {_line(str(err))}", trouble=Trouble.AUTH)
    if isinstance(err, (ServiceRequestError, ServiceResponseError, DeserializationError)):
        return ProviderError(f"{deed}: no proper answer: {_line(str(err))}", trouble=Trouble.RETRY)
    return ProviderError(f"{deed}: {_line(str(err))}")


def _codes(error: Any) -> tuple[str, ...]:
    """Return the code of an ARM error and of what lies in it."""
    if error is None:
        return ()
    inner = [code for detail in error.details or () for code in _codes(detail)]
    return tuple(c for c in (error.code, *inner) if c)


def _message(err: HttpResponseError) -> str:
    said = (err.error.message if err.error is not None else None) or err.message or "no message"
    return f"{_line(said)} (HTTP {err.status_code})"


def _retry_after_s(err: HttpResponseError) -> float | None:
    headers: Mapping[str, str] = getattr(err.response, "headers", {})
    text = headers.get("Retry-After")
    try:
        return max(0.0, float(text)) if text else None
    except ValueError:
        return None  # a date: rare enough to fall back on the caller's own pause


def _line(text: str) -> str:
    return " ".join(text.split())[:400]
