"""What Compute Engine's errors mean; pure. See cloud.google.com/compute/docs/troubleshooting."""

import re
from collections.abc import Mapping
from typing import Any

from varuna_manager.cloud.provider import ProviderError, Trouble

_CAPACITY = re.compile(
    r"RESOURCE_POOL_EXHAUSTED|STOCKOUT|RESOURCE_AVAILABILITY|not have enough resources", re.I
)
_QUOTA = re.compile(r"QUOTA|IP_SPACE_EXHAUSTED|limitExceeded", re.I)
_RATE = re.compile(r"rateLimitExceeded|RATE_LIMIT_EXCEEDED|OPERATION_RATE_EXCEEDED|per minute", re.I)
_AUTH = re.compile(r"PERMISSION|FORBIDDEN|UNAUTHORIZED|accessNotConfigured", re.I)
_CONFIG = re.compile(r"NOT_FOUND|INVALID|UNSUPPORTED|CONDITION_NOT_MET|badRequest", re.I)
_RETRY = re.compile(r"RESOURCE_?NOT_?READY|RESOURCE_?IN_?USE|INTERNAL|UNAVAILABLE|BACKEND|TIMEOUT", re.I)
_BY_STATUS = {400: Trouble.CONFIG, 401: Trouble.AUTH, 403: Trouble.AUTH, 404: Trouble.CONFIG}
_RETRIED_STATUSES = {408, 409, 412}


def trouble_of(code: str, message: str = "") -> Trouble:
    """Return the kind of an error that an operation or an attempt to make a machine ended with."""
    kinds = (
        (_RATE, Trouble.THROTTLED),
        (_CAPACITY, Trouble.CAPACITY),
        (_QUOTA, Trouble.QUOTA),
        (_AUTH, Trouble.AUTH),
        (_CONFIG, Trouble.CONFIG),
        (_RETRY, Trouble.RETRY),
    )
    for text in (code, message):
        found = next((kind for pattern, kind in kinds if pattern.search(text)), None)
        if found is not None:
            return found
    return Trouble.UNKNOWN


def refusal(status: int, body: Mapping[str, Any], retry_after: str, asked: str) -> ProviderError:
    """Return the error for an HTTP answer that is none of success."""
    error = body.get("error")
    error = error if isinstance(error, Mapping) else {}
    reasons = " ".join(str(e.get("reason", "")) for e in error.get("errors", ()) if isinstance(e, Mapping))
    message = str(error.get("message", "")) or f"HTTP {status}"
    text = f"{asked}: {status} {reasons}: {message}" if reasons else f"{asked}: {status}: {message}"
    return ProviderError(
        text,
        trouble=_trouble(status, reasons),
        retry_after_s=float(retry_after) if retry_after.isdigit() else None,
    )


def _trouble(status: int, reasons: str) -> Trouble:
    if status == 429 or (status == 403 and _RATE.search(reasons)):
        return Trouble.THROTTLED
    if status == 403 and _QUOTA.search(reasons):
        return Trouble.QUOTA
    if status >= 500 or status in _RETRIED_STATUSES or _RETRY.search(reasons):
        return Trouble.RETRY
    return _BY_STATUS.get(status, Trouble.UNKNOWN)


def first_error(holder: Mapping[str, Any]) -> tuple[str, Trouble] | None:
    """Return text and kind of the first error below `error.errors` or `errors.errors`; None without one."""
    below = holder.get("error") or holder.get("errors") or {}
    errors = below.get("errors", ()) if isinstance(below, Mapping) else ()
    for error in errors:
        code, message = str(error.get("code", "")), str(error.get("message", ""))
        return f"{code}: {message}" if message else code, trouble_of(code, message)
    return None
