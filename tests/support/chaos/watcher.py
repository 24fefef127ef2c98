"""What a job's manager says of it, kept as it comes, across managers that are killed."""

import contextlib
import threading
import time
from collections.abc import Callable
from pathlib import Path

from tests.support.chaos.checker import Glimpse
from varuna_manager.client import Client
from varuna_runtime.spec.errors import VarunaError


class Watcher:
    """Follows one job in a thread; a context manager."""

    def __init__(self, address: Callable[[], str], job: str) -> None:
        self._address = address
        self._job = job
        self._changed = threading.Condition()
        self._glimpses: list[Glimpse] = []
        self._fresh_at_s = time.time()
        self._is_over = False
        self._client: Client | None = None
        self._thread = threading.Thread(target=self._follow, name="watcher")

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        while self._thread.is_alive():
            if (client := self._client) is not None:
                client.close()
            self._thread.join(timeout=0.1)

    @property
    def glimpses(self) -> tuple[Glimpse, ...]:
        """All so far, in order."""
        with self._changed:
            return tuple(self._glimpses)

    @property
    def last(self) -> Glimpse:
        """The newest."""
        return (
            self._glimpses[-1]
            if self._glimpses
            else Glimpse(at_s=0.0, state="", generation=0, step=0, durable_step=0)
        )

    @property
    def fresh_at_s(self) -> float:
        """When a step was last told that nobody had told before; Unix seconds."""
        return self._fresh_at_s

    def wait(self, holds: Callable[[Glimpse], bool], timeout_s: float) -> bool:
        """Wait until the newest glimpse satisfies `holds`; whether it did in time."""
        with self._changed:
            return self._changed.wait_for(lambda: holds(self.last), timeout_s)

    def _follow(self) -> None:
        while not self._is_over:
            with contextlib.suppress(VarunaError, ValueError), Client(self._address()) as self._client:
                for status in self._client.watch(self._job):
                    self._add(
                        Glimpse(
                            at_s=time.time(),
                            state=status.state,
                            generation=status.generation,
                            step=status.step,
                            durable_step=status.durable_step,
                            recoverable_step=status.recoverable_step,
                            replayed_steps=status.replayed_steps,
                            weights_sha256=status.weights_sha256,
                        )
                    )
                    if status.is_over:
                        return
            time.sleep(0.05)

    def _add(self, glimpse: Glimpse) -> None:
        with self._changed:
            if glimpse.step > max((g.step for g in self._glimpses), default=-1):
                self._fresh_at_s = glimpse.at_s
            self._glimpses.append(glimpse)
            self._changed.notify_all()


def read_address(home: Path) -> str:
    """Return where the manager of a home was last heard of; empty before the first."""
    import json

    with contextlib.suppress(OSError, ValueError):
        return str(json.loads((home / "manager" / "manager.json").read_text())["address"])
    return ""
