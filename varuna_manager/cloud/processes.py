"""Identity of local processes: a pid alone is never enough to judge or to kill (Linux, /proc)."""

import os
import signal
from dataclasses import dataclass
from pathlib import Path

_STATE, _PARENT, _START_TICKS = 0, 1, 19  # places after the command name in /proc/<pid>/stat, see proc(5)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessId:
    """A process that no later process can be mistaken for."""

    pid: int
    start_ticks: int
    boot_id: str


def identify(pid: int) -> ProcessId | None:
    """Return the identity of a living process; None when there is none, or only a zombie."""
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return None
    fields = stat.rpartition(")")[2].split()
    if fields[_STATE] in "ZX":
        return None
    return ProcessId(pid=pid, start_ticks=int(fields[_START_TICKS]), boot_id=boot_id())


def is_alive(process: ProcessId) -> bool:
    """Return whether exactly this process still runs."""
    return identify(process.pid) == process


def send(process: ProcessId, signum: signal.Signals) -> bool:
    """Signal exactly this process; False when it is gone. The handle is taken before the check: no race."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return False
    try:
        if not is_alive(process):
            return False
        signal.pidfd_send_signal(handle, signum)
    except ProcessLookupError:
        return False
    finally:
        os.close(handle)
    return True


def reap(process: ProcessId) -> None:
    """Take leave of exactly this process if it is a child of ours that has ended; else do nothing."""
    try:
        fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    except (FileNotFoundError, ProcessLookupError):
        return
    is_ours = int(fields[_PARENT]) == os.getpid() and int(fields[_START_TICKS]) == process.start_ticks
    if is_ours and fields[_STATE] == "Z":
        os.waitpid(process.pid, os.WNOHANG)


def boot_id() -> str:
    """Return the id of this boot: start ticks count from it."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def own() -> ProcessId:
    """Return the identity of this process."""
    found = identify(os.getpid())
    assert found is not None, "this process lives"
    return found
