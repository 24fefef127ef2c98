"""Which processes of this node are stopped, by SIGSTOP say, and for how long; judged by an awake agent only.

A busy process and a stopped one are equally silent. The kernel knows the difference.
"""

import os
from collections.abc import Callable, Iterable
from pathlib import Path

LOOK_S = 0.1
_MOMENT_S = 0.05  # of the processor: threads that only wait for messages use less in seconds
_GAP_S = 0.5  # a longer one between two looks is the agent's own absence


def is_stopped(pid: int) -> bool:
    """Return whether a process is stopped (T in proc(5)); one that a debugger holds (t) is not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:  # it has ended
        return False


def computed_s(pid: int) -> float:
    """Return the processor time that all threads of a process have used; 0 for one that has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


class Business:
    """Tells which processes compute: more than a moment since they were told the last time."""

    def __init__(self, *, computed_s: Callable[[int], float] = computed_s) -> None:
        self._computed_s = computed_s
        self._told_s: dict[int, float] = {}

    def look(self, pids: Iterable[int]) -> list[int]:
        """Return those that computed since they were returned last, ascending."""
        used = {pid: self._computed_s(pid) for pid in pids}
        busy = sorted(pid for pid in used if used[pid] - self._told_s.get(pid, used[pid]) >= _MOMENT_S)
        kept = {pid: self._told_s.get(pid, used_s) for pid, used_s in used.items()}
        self._told_s = kept | {pid: used[pid] for pid in busy}
        return busy


class Stillness:
    """Remembers since when processes have been seen stopped at every look."""

    def __init__(self, limit_s: float, *, is_stopped: Callable[[int], bool] = is_stopped) -> None:
        self._limit_s = limit_s
        self._is_stopped = is_stopped
        self._since_s: dict[int, float] = {}
        self._looked_s = 0.0

    def look(self, pids: Iterable[int], now_s: float) -> dict[int, float]:
        """Return the processes stopped for longer than the limit, and for how long; each look anew."""
        if now_s - self._looked_s > _GAP_S:  # they may have run meanwhile, or were stopped together with us
            self._since_s.clear()
        self._looked_s = now_s
        stopped = [pid for pid in pids if self._is_stopped(pid)]
        self._since_s = {pid: self._since_s.get(pid, now_s) for pid in stopped}
        return {
            pid: now_s - since_s for pid, since_s in self._since_s.items() if now_s - since_s >= self._limit_s
        }
