"""Ending exactly what `varuna up` started, and what its agents started, whatever was killed before."""

import signal
import time
from collections.abc import Callable
from pathlib import Path

from varuna_manager import clock
from varuna_manager.cloud import processes
from varuna_manager.cloud.local_machines import POOL_MARK, LocalMachines
from varuna_manager.cloud.pool_file import Started
from varuna_manager.cloud.processes import ProcessId
from varuna_manager.home import Home
from varuna_runtime.agent import sockets
from varuna_runtime.spec.errors import VarunaError

GRACE_S = 10.0
GUARD_S = 4.0
_POLL_S = 0.05


class NotDown(VarunaError):
    """Something we started could not be ended."""


def end_all(home: Home) -> tuple[Started, ...]:
    """End every recorded process and their descendants and return those that had to be told.

    First politely; after the grace they are killed. Idempotent.
    """
    machines = LocalMachines(home)
    # Stopped processes take no notice of anything but SIGKILL until they continue.
    machines.signal_all(signal.SIGCONT)
    told = machines.signal_all(signal.SIGTERM)
    if not _within(GRACE_S, lambda: _are_gone(machines, told)):
        machines.signal_all(signal.SIGKILL)
    if not _within(GRACE_S, lambda: not _alive(machines)):
        raise NotDown(f"still running after SIGKILL: {_names(_alive(machines))}")
    _end_orphans(home)
    machines.forget_all()
    _remove_run_files(home)
    return told


def orphans(home: Home) -> tuple[ProcessId, ...]:
    """Return living processes of this home's pool, recorded or not; their environment says so."""
    found = (processes.identify(pid) for pid in _own_pids() if _is_marked(pid, home))
    return tuple(process for process in found if process is not None)


def _alive(machines: LocalMachines) -> tuple[Started, ...]:
    return tuple(s for s in machines.started() if processes.is_alive(s.process))


def _are_gone(machines: LocalMachines, told: tuple[Started, ...]) -> bool:
    """Return whether nothing lives; the manager may have replaced a node before it was told itself."""
    alive = _alive(machines)
    for new in set(alive) - set(told):
        processes.send(new.process, signal.SIGTERM)
    return not alive


def _names(started: tuple[Started, ...]) -> str:
    return ", ".join(f"{s.name} (pid {s.process.pid})" for s in started)


def _end_orphans(home: Home) -> None:
    """The agents' guards end them; if a guard was killed too, or `up` before it wrote a record, we do."""
    if _within(GUARD_S, lambda: not orphans(home)):
        return
    for process in orphans(home):
        processes.send(process, signal.SIGKILL)
    if not _within(GRACE_S, lambda: not orphans(home)):
        raise NotDown(f"still running after SIGKILL: pids {[p.pid for p in orphans(home)]}")


def _own_pids() -> tuple[int, ...]:
    return tuple(int(path.name) for path in Path("/proc").iterdir() if path.name.isdigit())


def _is_marked(pid: int, home: Home) -> bool:
    try:
        environment = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return False
    if f"{POOL_MARK}={home.root}".encode() in environment:
        return True
    is_of_agent = any(e.startswith(b"VARUNA_INCARNATION=") for e in environment)
    return is_of_agent and f"VARUNA_HOME={home.root}".encode() in environment


def _remove_run_files(home: Home) -> None:
    for node in home.root.glob("nodes/*"):
        sockets.remove_all(node)
    home.pool_file.with_suffix(".lock").unlink(missing_ok=True)


def _within(seconds: float, is_done: Callable[[], bool]) -> bool:
    give_up_at = clock.monotonic_s() + seconds
    while not is_done():
        if clock.monotonic_s() > give_up_at:
            return False
        time.sleep(_POLL_S)
    return True
