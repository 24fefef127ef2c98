"""The ways clouds write a moment, as Unix seconds; None for text that is none."""

from datetime import UTC, datetime
from email.utils import parsedate_to_datetime


def iso(text: object) -> float | None:
    """Read e.g. "2026-09-18T08:22:00Z"; without a zone it is UTC."""
    if not isinstance(text, str):
        return None
    try:
        return _unix_s(datetime.fromisoformat(text.strip()))
    except (ValueError, OverflowError):
        return None


def rfc1123(text: object) -> float | None:
    """Read e.g. "Mon, 19 Sep 2026 18:29:47 GMT", with or without the day of the week."""
    if not isinstance(text, str):
        return None
    try:
        return _unix_s(parsedate_to_datetime(text))
    except (ValueError, TypeError, IndexError, OverflowError):
        return None


def _unix_s(moment: datetime) -> float:
    return (moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp()
