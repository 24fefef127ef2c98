"""One agent for a node's folder: an exclusive lock for as long as the process lives."""

import fcntl
import os
from pathlib import Path
from typing import TextIO

from varuna_runtime.spec.errors import Conflict, InvalidInput


def hold(home: Path) -> TextIO:
    """Take the lock and return the open file that holds it; two agents would push each other out for ever.

    Conflict names the process that has it, InvalidInput a folder that cannot be made or written.
    """
    try:
        home.mkdir(parents=True, exist_ok=True)
        lock = (home / "lock").open("a+")
    except OSError as err:
        raise InvalidInput(
            f"home: {home} cannot be written ({err.strerror}); give --home a folder of the agent's user"
        ) from err
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as err:
        lock.seek(0)
        owner = lock.read().strip() or "unknown"
        lock.close()
        raise Conflict(
            f"{home} belongs to the agent with pid {owner}, which runs; end it first, or give this one "
            "another --home and --node"
        ) from err
    lock.truncate(0)
    lock.write(f"{os.getpid()}\n")
    lock.flush()
    return lock
