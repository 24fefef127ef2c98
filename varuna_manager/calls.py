"""Blocking calls of one provider, one at a time, each bounded in time; a hanging one holds up nobody else."""

import asyncio
import threading
from collections.abc import Callable
from typing import Generic, TypeVar

import structlog

from varuna_manager.cloud.provider import ProviderError, Trouble
from varuna_manager.sizing.decisions import Failed
from varuna_runtime.spec.errors import VarunaError

_log = structlog.get_logger()
T = TypeVar("T")


class Calls(Generic[T]):
    """Each call has a daemon thread: what never returns costs one thread, and not the end of the process."""

    def __init__(self, name: str, *, within_s: float) -> None:
        self._name = name
        self._within_s = within_s
        self._running: asyncio.Future[object] | None = None

    @property
    def is_busy(self) -> bool:
        """True while a call that was given up has still not returned."""
        return self._running is not None and not self._running.done()

    async def call(self, work: Callable[[], T]) -> T | Failed:
        """Return what `work` returns, or how it failed; Trouble.RETRY when there is no answer in time."""
        if self.is_busy:
            return Failed(trouble=Trouble.RETRY, message="an earlier call still has no answer")
        loop = asyncio.get_running_loop()
        self._running = answer = loop.create_future()

        def run() -> None:
            outcome = self._outcome(work)
            if not loop.is_closed():
                loop.call_soon_threadsafe(_settle, answer, outcome)

        threading.Thread(target=run, name=self._name, daemon=True).start()
        try:
            async with asyncio.timeout(self._within_s):
                return await asyncio.shield(answer)
        except TimeoutError:
            return Failed(trouble=Trouble.RETRY, message=f"no answer within {self._within_s:g} s")

    def _outcome(self, work: Callable[[], T]) -> T | Failed:
        try:
            return work()
        except ProviderError as err:
            return Failed(trouble=err.trouble, message=str(err), retry_after_s=err.retry_after_s)
        except VarunaError as err:
            return Failed(trouble=Trouble.CONFIG, message=str(err))
        except Exception as err:  # a bug of an adapter must cost a call, not the manager
            _log.exception("provider call failed", pool=self._name)
            return Failed(trouble=Trouble.UNKNOWN, message=f"{type(err).__name__}: {err}")


def _settle(answer: asyncio.Future[object], outcome: object) -> None:
    if not answer.done():
        answer.set_result(outcome)
