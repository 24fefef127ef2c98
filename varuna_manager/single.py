"""One manager for a state home: an exclusive lock for as long as the process lives."""

import fcntl
import os
from pathlib import Path
from typing import TextIO

from varuna_runtime.spec.errors import Conflict


def hold(path: Path) -> TextIO:
    """Take the lock and return the open file that holds it; Conflict names the process that has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = path.open("a+")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as err:
        lock.seek(0)
        owner = lock.read().strip() or "unknown"
        lock.close()
        raise Conflict(
            f"{path.parent} is already served by the manager with pid {owner}; "
            "use that one, end it first, or choose another VARUNA_HOME"
        ) from err
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock
