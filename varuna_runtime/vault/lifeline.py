"""Ties a process to its parent's life on Linux; workers and launchers use it too."""

import ctypes
import os
import signal

_PR_SET_PDEATHSIG = 1


def die_with(parent: int) -> None:
    """Be killed by the kernel when `parent` ends; ends at once if it already has.

    The signal follows the parent's thread that started this process, so that has to be its main thread.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "the parent-death signal cannot be set")
    if os.getppid() != parent:  # it ended before the line above
        os.kill(os.getpid(), signal.SIGKILL)
