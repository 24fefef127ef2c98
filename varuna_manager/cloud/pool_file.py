"""pool.json: what `varuna up` started on this machine. One reader-writer at a time, by file lock."""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

from varuna_manager import files
from varuna_manager.cloud.processes import ProcessId
from varuna_runtime.spec import canonical


class Role(StrEnum):
    """What a recorded process is."""

    MANAGER = "manager"
    AGENT = "agent"


@dataclass(frozen=True, slots=True, kw_only=True)
class Started:
    """A process we started; `name` is the node of an agent, "manager" for the manager."""

    name: str
    role: Role
    process: ProcessId
    pool: str = ""  # name of the pool of an agent; empty: of `varuna up`


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Everything started since the last `varuna down`; node names are never used twice."""

    started: tuple[Started, ...] = ()
    last_number: int = 0

    def named(self, name: str) -> Started | None:
        """Return the process called `name`."""
        return next((s for s in self.started if s.name == name), None)

    def with_started(self, new: Started) -> "Pool":
        """Return the pool with `new` in the place of whatever had its name."""
        kept = tuple(s for s in self.started if s.name != new.name)
        return replace(self, started=(*kept, new))


class PoolFile:
    """The pool on disk; absent means empty."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def read(self) -> Pool:
        """Return the recorded pool; InvalidInput when the file was damaged."""
        try:
            text = self._path.read_text()
        except FileNotFoundError:
            return Pool()
        return canonical.loads(Pool, text)

    def write(self, pool: Pool) -> None:
        """Replace the recorded pool; call it inside `locked`."""
        files.replace(self._path, canonical.dumps(pool).decode())

    def remove(self) -> None:
        """Forget the pool; call it inside `locked`."""
        self._path.unlink(missing_ok=True)

    @contextmanager
    def locked(self) -> Iterator[Pool]:
        """Hold the pool against other processes, and yield it as it is now."""
        with exclusively(self._path.with_suffix(".lock")):
            yield self.read()


@contextmanager
def exclusively(path: Path) -> Iterator[None]:
    """Hold `path` as a lock against other processes; who holds it may remove the file."""
    path.parent.mkdir(parents=True, exist_ok=True)
    while True:
        with path.open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if _is_still_at(path, lock.fileno()):
                yield
                return


def _is_still_at(path: Path, descriptor: int) -> bool:
    """Return False when the file was removed while we waited for it: others lock a new one now."""
    try:
        return path.stat().st_ino == os.fstat(descriptor).st_ino
    except FileNotFoundError:
        return False
