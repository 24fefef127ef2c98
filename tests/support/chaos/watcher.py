"""What a job's manager says of it, kept as it comes, across managers that are killed."""

import contextlib
import json
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from tests.support.chaos.checker import Glimpse
from varuna_manager.client import Client, JobStatus
from varuna_manager.core.phases import TERMINAL
from varuna_runtime.spec.errors import VarunaError

_LOOK_S = 0.02
_CALL_S = 2.0


_NOTHING = Glimpse(at_s=0.0, state="", generation=0, step=0, durable_step=0)


class Watcher:
    """Follows one job in a thread; a context manager."""

    def __init__(self, address: Callable[[], str], job: str) -> None:
        self._address = address
        self._job = job
        self._changed = threading.Condition()
        self._glimpses: list[Glimpse] = []
        self._fresh_at_s = time.time()
        self._is_over = False
        self._newest = -1
        self._thread = threading.Thread(target=self._follow, name="watcher")

    def __enter__(self) -> "Watcher":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()

    @property
    def glimpses(self) -> tuple[Glimpse, ...]:
        """All so far, in order."""
        return tuple(self._glimpses)

    @property
    def last(self) -> Glimpse:
        """The newest."""
        return self._glimpses[-1] if self._glimpses else _NOTHING

    @property
    def fresh_at_s(self) -> float:
        """When a step was last told that nobody had told before; Unix seconds."""
        return self._fresh_at_s

    def wait(self, holds: Callable[[Glimpse], bool], timeout_s: float) -> bool:
        """Wait until the newest glimpse satisfies `holds`; whether it did in time."""
        with self._changed:
            return self._changed.wait_for(lambda: holds(self.last), timeout_s)

    def _follow(self) -> None:
        """Ask again and again: the stream of changes comes in bursts, and misses short phases."""
        while not self._is_over and self.last.state not in TERMINAL:
            with (
                contextlib.suppress(VarunaError, ValueError),  # none there, or no address yet
                Client(self._address(), timeout_s=_CALL_S) as client,
            ):
                while not self._is_over and self.last.state not in TERMINAL:
                    self._add(_glimpse(client.job(self._job)))
                    time.sleep(_LOOK_S)
            time.sleep(2 * _LOOK_S)

    def _add(self, glimpse: Glimpse) -> None:
        with self._changed:
            if self._glimpses and glimpse == replace(self._glimpses[-1], at_s=glimpse.at_s):
                return
            if glimpse.step > self._newest:
                self._newest, self._fresh_at_s = glimpse.step, glimpse.at_s
            self._glimpses.append(glimpse)
            self._changed.notify_all()


def _glimpse(status: JobStatus) -> Glimpse:
    return Glimpse(
        at_s=time.time(),
        state=status.state,
        generation=status.generation,
        step=status.step,
        durable_step=status.durable_step,
        recoverable_step=status.recoverable_step,
        replayed_steps=status.replayed_steps,
        weights_sha256=status.weights_sha256,
    )


def read_address(home: Path) -> str:
    """Return where the manager of a home was last heard of; empty before the first."""
    with contextlib.suppress(OSError, ValueError):
        return str(json.loads((home / "manager" / "manager.json").read_text())["address"])
    return ""
