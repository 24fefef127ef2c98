"""A pool of agents as detached processes of this machine; ends only what it recorded as started."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from varuna_manager import files
from varuna_manager.clock import wall_s
from varuna_manager.cloud import processes
from varuna_manager.cloud.pool_file import PoolFile, Role, Started
from varuna_manager.cloud.processes import ProcessId
from varuna_manager.cloud.provider import Instance, InstancePhase, PoolReading, ProviderError
from varuna_manager.home import Home
from varuna_runtime.spec.errors import InvalidInput


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLaunch:
    """How new agents are started; None leaves the choice to the agent."""

    manager: str  # HOST:PORT
    slots: int = 1
    memory_bytes: int | None = None  # per slot


_MOST = 10_000


def fair_share(machine_bytes: int, num_nodes: int) -> int:
    """Return what one of `num_nodes` nodes of a machine may claim of its memory.

    Four fifths of it go to nodes. A node never gets more than an eighth of that, because it cannot give
    any back: so up to eight nodes fit together in whatever order they are added.
    """
    return machine_bytes * 4 // 5 // max(num_nodes, 8)


POOL_MARK = "VARUNA_POOL"
"""Carried by all that a local pool starts, so that it is found even if its record was never written."""

AgentCommand = Callable[[AgentLaunch, str, str], Sequence[str]]
"""(launch, node, folder of the node) -> command line."""


class LocalProvider:
    """Nodes are agent processes; an agent whose process has ended is a node that is gone.

    `launch` is needed by `add` only; `command` is for tests that need no real agent.
    """

    def __init__(
        self, home: Home, launch: AgentLaunch | None = None, *, command: AgentCommand | None = None
    ) -> None:
        self._home = home
        self._pool = PoolFile(home.pool_file)
        self._launch = launch
        self._command = command or agent_command

    def list_nodes(self) -> tuple[Instance, ...]:
        """Return every node started since the last `varuna down`, sorted by id."""
        agents = [s for s in self.started() if s.role is Role.AGENT]
        return tuple(_seen(agent) for agent in sorted(agents, key=lambda s: s.name))

    def started(self) -> tuple[Started, ...]:
        """Return every recorded process, the manager included, alive or not."""
        try:
            return self._pool.read().started
        except (OSError, InvalidInput) as err:
            raise ProviderError(f"cannot read {self._home.pool_file}: {err}") from err

    def add(self, count: int) -> tuple[str, ...]:
        """Start `count` agents and return their node ids; ids of gone nodes are not used again."""
        if self._launch is None:
            raise InvalidInput("cannot add nodes: the address of the manager was not given")
        return tuple(self._add_one(self._launch) for _ in range(count))

    def start_manager(self, command: Sequence[str]) -> ProcessId:
        """Start `command` as this home's manager, detached, its output in manager/manager.log."""
        self._home.manager.mkdir(parents=True, exist_ok=True)
        with self._pool.locked() as pool:
            process = self._spawn(command, self._home.manager_log)
            self._pool.write(pool.with_started(Started(name="manager", role=Role.MANAGER, process=process)))
        return process

    def read(self, now_s: float) -> PoolReading:
        """Return the recorded agents; the pool has no bounds of its own."""
        nodes = self.list_nodes()
        num_alive = sum(n.phase is InstancePhase.RUNNING for n in nodes)
        return PoolReading(instances=nodes, desired=num_alive, least=0, most=_MOST, price=0.0)

    def grow(self, desired: int, seen: PoolReading) -> None:
        """Start as many agents as are missing."""
        if desired <= seen.desired:
            raise InvalidInput(f"cannot grow to {desired}: {seen.desired} nodes run already")
        self.add(desired - seen.desired)

    def release(self, nodes: Sequence[str], seen: PoolReading) -> None:
        """Kill these agents."""
        for agent in [self._agent(node) for node in nodes]:
            processes.send(agent.process, signal.SIGKILL)

    def give_up(self, seen: PoolReading) -> None:
        """Do nothing: a process either starts or does not."""

    def let_go(self, node: str, seen: PoolReading) -> None:
        """Do nothing: no process waits for our word."""

    def terminate(self, node: str) -> None:
        """Kill the agent of `node`; its guard ends what it started."""
        processes.send(self._agent(node).process, signal.SIGKILL)

    def notice(self, node: str, in_s: float) -> None:
        """Write the node's notice file; its agent reports it and vanishes at the deadline."""
        self._agent(node)
        files.replace(self._home.node(node) / "notice.json", json.dumps({"deadline_unix": wall_s() + in_s}))

    def withdraw_notice(self, node: str) -> None:
        """Remove the node's notice file."""
        self._agent(node)
        (self._home.node(node) / "notice.json").unlink(missing_ok=True)

    def signal_all(self, signum: signal.Signals) -> tuple[Started, ...]:
        """Signal every recorded process that lives and return those, agents first."""
        agents_first = sorted(self.started(), key=lambda s: (s.role is Role.MANAGER, s.name))
        return tuple(s for s in agents_first if processes.send(s.process, signum))

    def forget_all(self) -> None:
        """Remove the record; refused while something recorded lives."""
        with self._pool.locked() as pool:
            alive = [s.name for s in pool.started if processes.is_alive(s.process)]
            if alive:
                raise InvalidInput(f"still running: {', '.join(alive)}; end them first")
            self._pool.remove()

    def _agent(self, node: str) -> Started:
        found = self._pool.read().named(node)
        if found is None or found.role is not Role.AGENT:
            known = ", ".join(n.node for n in self.list_nodes()) or "none"
            raise InvalidInput(f"no node {node} in the local pool; its nodes: {known}")
        return found

    def _add_one(self, launch: AgentLaunch) -> str:
        with self._pool.locked() as pool:
            pool = replace(pool, last_number=pool.last_number + 1)
            node = f"local-{pool.last_number}"
            folder = self._home.node(node)
            folder.mkdir(parents=True, exist_ok=True)
            process = self._spawn(self._command(launch, node, str(folder)), folder / "agent.log")
            self._pool.write(pool.with_started(Started(name=node, role=Role.AGENT, process=process)))
        return node

    def _spawn(self, command: Sequence[str], log: os.PathLike[str]) -> ProcessId:
        with open(log, "ab") as output:  # noqa: PTH123 - os.PathLike, not Path
            child = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "VARUNA_HOME": str(self._home.root), POOL_MARK: str(self._home.root)},
            )
        child.returncode = 0  # detached on purpose: it outlives us and is never waited for
        found = processes.identify(child.pid)
        if found is None:
            raise ProviderError(f"{command[0]} ended at once; see {log}")
        return found


def agent_command(launch: AgentLaunch, node: str, folder: str) -> tuple[str, ...]:
    """Return the command line of a local agent."""
    command = [sys.executable, "-m", "varuna_runtime.agent", "--manager", launch.manager]
    command += ["--node", node, "--home", folder, "--slots", str(launch.slots)]
    if launch.memory_bytes is not None:
        command += ["--memory-bytes", str(launch.memory_bytes)]
    return tuple(command)


def _seen(agent: Started) -> Instance:
    if processes.is_alive(agent.process):
        return Instance(node=agent.name, phase=InstancePhase.RUNNING)
    return Instance(
        node=agent.name, phase=InstancePhase.GONE, reason=f"its process {agent.process.pid} has ended"
    )
