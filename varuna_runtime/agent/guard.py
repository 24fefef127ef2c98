"""Ends whatever an agent leaves behind: a tiny process that outlives the agent's SIGKILL.

Standard library only (it is run with -I -S as a script). It kills nothing but processes that carry the marker
in their environment or that it saw below the agent, and, when the agent itself asks for it, that agent.
"""

import contextlib
import os
import select
import shutil
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

VANISH = b"K"
"""Written by the agent when its node is to vanish without a word, agent included."""
SPARED = "VARUNA_VAULT"
"""In the environment of the agent's child that outlives incarnations; the value is the agent's pid."""
_ROUNDS = 200
_ROUND_S = 0.02
_LOOK_S = 0.25


class Family:
    """The processes below one, remembered with their start times.

    A process that starts a new session, clears its environment and loses its parents is still known, if it
    lived through one look. Those of `root`'s children that are not to be ended are given as `apart`, or were
    started by it as SPARED; these end by themselves when it does.
    """

    def __init__(self, root: int, *, apart: tuple[int, ...] = ()) -> None:
        self._root, self._root_since = root, _since(root)
        self._apart = frozenset(apart)
        self._known: dict[int, str] = {}

    def look(self) -> None:
        """Learn who is there now."""
        roots = [self._root] if self._root_since and _since(self._root) == self._root_since else []
        self._learn(roots + self._prune())

    def end(self) -> bool:
        """SIGKILL all but `root`, until none is left; False if some were still there after a few seconds."""
        for pid in [pid for pid in self._known if self._is_spared(pid)]:
            del self._known[pid]  # it was seen before it had an environment of its own
        for _ in range(_ROUNDS):
            self._learn(self._prune())
            if not self._known:
                return True
            for pid, since in self._known.items():
                _kill(pid, lambda pid=pid, since=since: _since(pid) == since)  # type: ignore[misc]
            time.sleep(_ROUND_S)
        return not self._prune()

    def _prune(self) -> list[int]:
        self._known = {pid: since for pid, since in self._known.items() if _since(pid) == since}
        return list(self._known)

    def _learn(self, parents: list[int]) -> None:
        while parents:
            for pid in _children(parents.pop()):
                since = _since(pid)
                is_new = since and pid not in self._known and pid not in self._apart
                if is_new and not self._is_spared(pid):
                    self._known[pid] = since
                    parents.append(pid)

    def _is_spared(self, pid: int) -> bool:
        """Whether `root` started it to outlive this sweep; nothing below another child can claim that."""
        return _parent(pid) == self._root and _carries(pid, f"{SPARED}={self._root}")


def main(argv: list[str]) -> None:
    """Wait for the end of the pipe `fd`, end every process marked `marker`, remove the folders, exit.

    argv: the descriptor of the pipe's read end, the agent's pid, the marker, then folders to remove.
    """
    fd, agent, marker, *folders = int(argv[0]), int(argv[1]), *argv[2:]
    _ignore_signals()
    agent_fd = os.pidfd_open(agent) if os.getppid() == agent else None
    family = Family(agent, apart=(os.getpid(),))
    while word := _read(fd, family if agent_fd is not None else None):
        if VANISH in word and agent_fd is not None:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(agent_fd, signal.SIGKILL)
    end_marked(marker)
    family.end()
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
            _kill(pid, lambda pid=pid: _carries(pid, marker))  # type: ignore[misc]
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


def _children(pid: int) -> list[int]:
    """Direct children, whichever thread started them."""
    found: list[int] = []
    with contextlib.suppress(OSError):  # the process or a thread ended meanwhile
        for task in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(OSError):
                text = (task / "children").read_text()
                found += [int(word) for word in text.split()]
    return found


def _since(pid: int) -> str:
    """The start time, which tells a process from a later one of the same pid; empty for one that ended."""
    fields = _stat(pid)
    return fields[19] if fields and fields[0] not in "ZX" else ""


def _parent(pid: int) -> int:
    fields = _stat(pid)
    return int(fields[1]) if fields else 0


def _stat(pid: int) -> list[str]:
    """The fields behind the name, the state first; none for a process that is gone."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _kill(pid: int, is_still: Callable[[], bool]) -> None:
    """Look again through a pidfd, so that a reused pid is never hit."""
    with contextlib.suppress(ProcessLookupError):
        handle = os.pidfd_open(pid)
        try:
            if is_still():
                signal.pidfd_send_signal(handle, signal.SIGKILL)
        finally:
            os.close(handle)


def _ignore_signals() -> None:
    """Only the pipe ends the guard: a ctrl-C or a polite TERM must not leave the workers alone."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)


def _read(fd: int, family: Family | None) -> bytes:
    """What the agent says, empty once it has ended; looks after its family meanwhile."""
    while family is not None:
        family.look()
        if select.select([fd], [], [], _LOOK_S)[0]:
            break
    return os.read(fd, 64)


if __name__ == "__main__":
    main(sys.argv[1:])
