"""One manager for a state home: an exclusive lock for as long as the process lives."""

import fcntl
import os
from pathlib import Path
from typing import TextIO

from varuna_runtime.spec.errors import Conflict, InvalidInput


def hold(path: Path) -> TextIO:
    """Take the lock and return the open file that holds it; Conflict names the process that has it.

    InvalidInput when the folder cannot be made or written.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.open("a+")
    except OSError as err:
        raise InvalidInput(
            f"home: {path.parent} cannot be written ({err.strerror}); set home in manager.yaml "
            "or VARUNA_HOME to a folder of the manager's user"
        ) from err
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
