"""Ends whatever an agent leaves behind: a tiny process that outlives the agent's SIGKILL.

Standard library only (it is run with -I -S as a script). It kills nothing but processes that carry the marker
in their environment, and, when the agent itself asks for it, that agent.
"""

import contextlib
import os
import shutil
import signal
import sys
import time
from pathlib import Path

VANISH = b"K"
"""Written by the agent when its node is to vanish without a word, agent included."""
_ROUNDS = 200
_ROUND_S = 0.02


def main(argv: list[str]) -> None:
    """Wait for the end of the pipe `fd`, end every process marked `marker`, remove the folders, exit.

    argv: the descriptor of the pipe's read end, the agent's pid, the marker, then folders to remove.
    """
    fd, agent, marker, *folders = int(argv[0]), int(argv[1]), *argv[2:]
    _ignore_signals()
    agent_fd = os.pidfd_open(agent) if os.getppid() == agent else None
    while word := _read(fd):
        if VANISH in word and agent_fd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(agent_fd, signal.SIGKILL)
    end_marked(marker)
    for folder in folders:
        shutil.rmtree(folder, ignore_errors=True)


def end_marked(marker: str) -> bool:
    """SIGKILL every process with `marker` (NAME=value) in its environment, until none is left.

    Returns False if some were still there after a few seconds (uninterruptible sleep).
    """
    for _ in range(_ROUNDS):
        pids = marked(marker)
        if not pids:
            return True
        for pid in pids:
            _kill(pid, marker)
        time.sleep(_ROUND_S)
    return not marked(marker)


def marked(marker: str) -> tuple[int, ...]:
    """Pids of other living processes whose environment holds `marker` exactly, ascending."""
    pids = sorted(int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())
    return tuple(pid for pid in pids if pid != os.getpid() and _carries(pid, marker))


def _carries(pid: int, marker: str) -> bool:
    """Zombies have an empty environment, so they do not count."""
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:  # ended meanwhile, or another user's
        return False
    return marker.encode() in environment.split(b"\0")


def _kill(pid: int, marker: str) -> None:
    """Look again through a pidfd, so that a reused pid is never hit."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if _carries(pid, marker):
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def _ignore_signals() -> None:
    """Only the pipe ends the guard: a ctrl-C or a polite TERM must not leave the workers alone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _read(fd: int) -> bytes:
    return os.read(fd, 64)


if __name__ == "__main__":
    main(sys.argv[1:])
