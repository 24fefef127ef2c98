"""Processes of this benchmark, known by a mark in their environment, and what all others use meanwhile."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from benchmarks.testbed import RankFailed

MARK = "VARUNA_BENCHMARK"
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@contextlib.contextmanager
def marked() -> Iterator[str]:
    """Mark whatever this process starts from now on, and end what is left of it afterwards."""
    mark = f"recovery-{os.getpid()}-{time.monotonic_ns()}"
    os.environ[MARK] = mark
    os.environ["OMP_NUM_THREADS"] = "1"
    try:
        yield mark
    finally:
        for _ in range(3):
            kill(own(mark))
        del os.environ[MARK]


def own(mark: str) -> list[int]:
    """Return the pids of living processes with this mark, ourselves left out."""
    return [pid for pid in _pids() if pid != os.getpid() and _carries(pid, mark)]


def tree(pid: int) -> list[int]:
    """Return a process and all below it, parents first."""
    found = [pid]
    parents = {p: int(fields[1]) for p in _pids() if (fields := _stat(p)) and fields[0] not in "ZX"}
    for known in found:
        found += [child for child, parent in parents.items() if parent == known and child not in found]
    return found


def parent(pid: int) -> int:
    """Return the pid above; 0 when the process is gone."""
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def is_alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    fields = _stat(pid)
    return bool(fields) and fields[0] not in "ZX"


def command_line(pid: int) -> str:
    """Return the words of a process; empty when it is gone."""
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
    return ""


def kill(pids: Iterable[int], number: signal.Signals = signal.SIGKILL) -> float:
    """Signal processes, some of which may be gone, and return when the first was."""
    begun_s = time.monotonic()
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, number)
    return begun_s


def until(holds: Callable[[], bool], what: str, within_s: float) -> None:
    """Wait, at most so long; RankFailed says what for."""
    give_up_s = time.monotonic() + within_s
    while not holds():
        if time.monotonic() > give_up_s:
            raise RankFailed(f"waited {within_s:g} s for {what}")
        time.sleep(0.05)


class ForeignLoad:
    """CPU that processes without our mark use, from now to `cores`."""

    def __init__(self) -> None:
        self._mark = os.environ[MARK]
        self._begun_s, self._before = time.monotonic(), self._ticks()

    def cores(self) -> float:
        """Return how many cores they kept busy; what they used before they ended in between is not seen."""
        now = self._ticks()
        used = sum(max(0, ticks - self._before.get(pid, 0)) for pid, ticks in now.items())
        return used / _TICKS_PER_S / (time.monotonic() - self._begun_s)

    def _ticks(self) -> dict[int, int]:
        others = (pid for pid in _pids() if pid != os.getpid() and not _carries(pid, self._mark))
        living = ((pid, fields) for pid in others if (fields := _stat(pid)) and fields[0] not in "ZX")
        return {pid: sum(map(int, fields[11:13])) for pid, fields in living}


def _carries(pid: int, mark: str) -> bool:
    try:
        words = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"{MARK}={mark}".encode() in words


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit()]


def _stat(pid: int) -> list[str]:
    """Return /proc/<pid>/stat after the command name; empty when the process is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []
