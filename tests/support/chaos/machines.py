"""The pool of a campaign: its manager and nodes, started and found by process, and kept alive."""

import contextlib
import os
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from tests.support.chaos.watcher import read_address
from tests.support.pool import Pool, carriers, children, command_line, is_alive, wait_until
from varuna_manager.client import Client
from varuna_manager.cloud.local_machines import AgentLaunch, LocalMachines, agent_command
from varuna_manager.cloud.pool_file import Role
from varuna_manager.home import Home
from varuna_runtime.spec.errors import VarunaError

_NODE_BYTES = 1 << 30
_DAY_S = 86400


class Machines:
    """Nodes and manager of `lent`, without the seconds that a command line takes to start."""

    def __init__(self, lent: Pool, settings: Path, extra: dict[str, str]) -> None:
        self._lent = lent
        self._settings = settings
        self._environment = ("env", *(f"{name}={value}" for name, value in sorted(extra.items())))
        self.home = lent.home
        self._skew_s = 0

    @property
    def address(self) -> str:
        """Where the manager serves."""
        return read_address(self.home)

    def start_manager(self, skew_s: int = 0) -> None:
        """Start a manager, unless one lives; with a monotonic clock that is off by so much."""
        if self.manager():
            return
        command = [sys.executable, "-m", "varuna_manager.cli", "manager", "--port", "0"]
        command += ["--config", str(self._settings)]
        self._local().start_manager((*self._environment, *skewed(skew_s), *command))

    def add(self, count: int, skew_s: int = 0) -> tuple[str, ...]:
        """Start nodes and return their names."""
        self._skew_s = skew_s
        wait_until(lambda: bool(self.address), "the manager has no address", 60)
        return self._local().add(AgentLaunch(manager=self.address, memory_bytes=_NODE_BYTES), count)

    def tend(self, num_nodes: int) -> None:
        """Bring back the manager, and nodes until there are so many."""
        self.start_manager()
        missing = num_nodes - len(self.agents())
        if missing > 0:
            self.add(missing)

    def manager(self) -> int:
        """Return the manager's pid; 0 while there is none."""
        recorded = [s.process.pid for s in self._local().started() if s.role is Role.MANAGER]
        return next((pid for pid in recorded if is_alive(pid)), 0)

    def agents(self) -> dict[str, int]:
        """Return the agents by node."""
        self._local().list_nodes()  # takes leave of those that ended
        return self._lent.node_pids()

    def notice(self, node: str, in_s: float) -> None:
        """Announce the end of a node, by a clock that may be off."""
        self._local().notice(node, in_s)

    def withdraw_notice(self, node: str) -> None:
        """Take an announcement back."""
        self._local().withdraw_notice(node)

    def drain(self, node: str) -> None:
        """Take a node out of use, if there is a manager that hears it."""
        with contextlib.suppress(VarunaError, ValueError), Client(self.address, timeout_s=5.0) as client:
            client.drain(node, user="chaos")

    def targets(self, role: str) -> list[int]:
        """Return the pids that play a role, sorted."""
        if role == "agent":
            return sorted(self.agents().values())
        if role == "manager":
            return [pid for pid in (self.manager(),) if pid]
        if role == "planner":
            return self._lent.planner_pids() if self.manager() else []
        if role == "guard":
            return self._lent.guard_pids()
        below = [pid for agent in self.agents().values() for pid in children(agent)]
        launchers = sorted(pid for pid in below if "worker.launcher" in command_line(pid))
        if role == "launcher":
            return launchers
        if role == "vault":
            return sorted(pid for pid in below if "varuna_runtime.vault" in command_line(pid))
        return sorted(pid for launcher in launchers for pid in children(launcher))

    def below(self, pid: int) -> set[int]:
        """Return every process below one."""
        found = set(children(pid))
        return found.union(*(self.below(child) for child in found)) if found else found

    def left(self) -> list[int]:
        """Return what of the pool lives."""
        return carriers(self.home)

    def _local(self) -> LocalMachines:
        return LocalMachines(Home(self.home), command=self._agent)

    def _agent(self, launch: AgentLaunch, node: str, folder: str) -> Sequence[str]:
        return (*self._environment, *skewed(self._skew_s), *agent_command(launch, node, folder))


def skewed(skew_s: int) -> tuple[str, ...]:
    """Return what a command line begins with to have another monotonic clock, in a time namespace.

    The boot clock stays: start times of processes are read by it, across these namespaces.
    """
    if not skew_s:
        return ()
    return ("unshare", "--time", "--monotonic", str(skew_s))


def some_skew_s(drawn: random.Random) -> int:
    """Return days ahead, or most of the time since the machine started back."""
    uptime_s = float(Path("/proc/uptime").read_text().split()[0])
    return drawn.choice([_DAY_S, 30 * _DAY_S, -int(uptime_s / 2)])


def can_skew() -> bool:
    """Whether this machine lets us make a time namespace."""
    with contextlib.suppress(OSError):
        return os.geteuid() == 0 and Path("/proc/self/timens_offsets").exists()
    return False
