"""The processes below a worker or launcher, on Linux: none of them outlives it."""

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

_PR_SET_CHILD_SUBREAPER = 36
_SWEEP_ROUNDS = 500
_SWEEP_ROUND_S = 0.01


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends, whatever session it is in."""
    _prctl(_PR_SET_CHILD_SUBREAPER, 1)


def children() -> frozenset[int]:
    """Return the direct children of this single-threaded process, zombies included."""
    pid = os.getpid()
    return frozenset(int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split())


def end_children(*, kept: frozenset[int]) -> None:
    """Kill and reap every child but `kept`; what these leave behind is adopted as they die, and ends too.

    Gives up after five seconds on processes that the kernel does not let go.
    """
    for _ in range(_SWEEP_ROUNDS):
        others = children() - kept
        if not others:
            return
        for pid in others:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            with contextlib.suppress(ChildProcessError):
                os.waitpid(pid, os.WNOHANG)
        time.sleep(_SWEEP_ROUND_S)


def num_threads() -> int:
    """Return how many threads the kernel counts in this process, native ones included."""
    return len(list(Path("/proc/self/task").iterdir()))


def _prctl(option: int, value: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option}) failed")
