"""In which phase a job is just now, as seen from outside."""

import time
from pathlib import Path
from typing import Protocol

from tests.support.chaos.matrix import Phase, Site
from tests.support.chaos.watcher import Watcher
from tests.support.clouds.fault_proxy import FaultProxy
from tests.support.pool import is_alive
from varuna_manager.core.phases import TERMINAL

_FRESH_S = 1.0
_RECOVERS_S = 10.0
_STATES = {Phase.PLAN: "PLANNING", Phase.LOAD: "STARTING", Phase.STEP: "RUNNING"}


class Saves(Protocol):
    """Tells whether shards are being written."""

    def are_under_way(self) -> bool:
        """Whether a step has shards and no manifest just now."""
        ...


class DiskSaves:
    """In a folder."""

    site = Site.DISK

    def __init__(self, store: Path) -> None:
        self._store = store

    def are_under_way(self) -> bool:
        """See Saves."""
        steps = sorted(self._store.glob("jobs/*/checkpoints/*"))
        if not steps or (steps[-1] / "manifest.json").exists():
            return False
        try:
            return time.time() - steps[-1].stat().st_mtime < _FRESH_S
        except FileNotFoundError:
            return False


class ProxySaves:
    """Through a proxy."""

    site = Site.S3

    def __init__(self, proxy: FaultProxy) -> None:
        self._proxy = proxy
        self._seen = 0

    def are_under_way(self) -> bool:
        """See Saves; a shard came since it was last asked, and its manifest has not."""
        puts = [call for call in self._proxy.calls() if call.startswith("PUT ") and "/checkpoints/" in call]
        before, self._seen = self._seen, len(puts)
        newest = max((call.partition("/checkpoints/")[2][:12] for call in puts), default="")
        has_manifest = any(f"/{newest}/manifest.json" in call for call in puts)
        return len(puts) > before > 0 and not has_manifest


class Phases:
    """What the injector asks before it does something."""

    def __init__(self, watcher: Watcher, folder: Path, saves: Saves) -> None:
        self._watcher = watcher
        self._folder = folder
        self._saves = saves
        self.last_fault_s = 0.0

    def importing(self) -> list[int]:
        """Return the processes that import the script."""
        pids = [int(path.name.partition("-")[2]) for path in self._folder.glob("importing-*")]
        return sorted(pid for pid in pids if is_alive(pid))

    def is_now(self, phase: Phase) -> bool:
        """Whether the job is in that phase."""
        match phase:
            case Phase.IMPORT:
                return bool(self.importing())
            case Phase.SAVE:
                return self._watcher.last.state == "RUNNING" and self._saves.are_under_way()
            case Phase.RECOVER:
                is_recent = time.time() - self.last_fault_s < _RECOVERS_S
                return is_recent and self._watcher.fresh_at_s < self.last_fault_s
            case _:
                return self._watcher.last.state == _STATES[phase]

    def wait(self, phase: Phase, timeout_s: float) -> bool:
        """Wait for a phase; whether it came in time."""
        deadline = time.monotonic() + timeout_s
        while not (is_now := self.is_now(phase)) and time.monotonic() < deadline:
            time.sleep(0.001)
        return is_now

    def wait_durable(self, timeout_s: float) -> bool:
        """Wait until more is durable than is now, or the job is over; whether it came in time."""
        before = self._watcher.last.durable_step
        return self._watcher.wait(lambda g: g.durable_step > before or g.state in TERMINAL, timeout_s)
