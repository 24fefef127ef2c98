"""The loop that every metadata service is watched by; nothing the service does ends it."""

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence

import structlog

from varuna_runtime.agent import clock
from varuna_runtime.agent.notices.book import Announcement, Book
from varuna_runtime.agent.notices.changes import Change, HealthChanged
from varuna_runtime.agent.notices.health import Health, pause_s
from varuna_runtime.spec.errors import MetadataUnavailable

_log = structlog.get_logger("varuna.agent")
Look = Callable[[], Awaitable[Sequence[Announcement]]]
"""Returns all that is announced now; raises MetadataUnavailable if that cannot be told."""


Close = Callable[[], Awaitable[None]]


async def changes(
    look: Look, close: Close, health: Health, *, every_s: float, cap_s: float
) -> AsyncGenerator[Change, None]:
    """Look every `every_s` seconds for ever, more rarely (up to `cap_s`) while that fails; yield the news."""
    book = Book()
    try:
        while True:
            for change in await _round(look, health, book):
                yield change
            await asyncio.sleep(pause_s(health.num_failures, every_s, cap_s))
    finally:
        await close()


async def _round(look: Look, health: Health, book: Book) -> list[Change]:
    try:
        present = await look()
    except MetadataUnavailable as err:
        return _failed(health, str(err))
    except Exception as err:  # a mistake of ours must not cost the node its warnings for good
        _log.exception("notices failed")
        return _failed(health, f"{type(err).__name__}: {err}")
    found: list[Change] = [HealthChanged(state=health.state)] if health.answered() else []
    return [*found, *book.update(present, clock.now_s())]


def _failed(health: Health, reason: str) -> list[Change]:
    if not health.failed(reason):
        return []
    _log.warning("notices unavailable", reason=reason)
    return [HealthChanged(state=health.state)]
