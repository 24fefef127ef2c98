"""Agents and a manager as detached processes of this machine; ends only what it recorded as started."""

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from varuna_manager import files
from varuna_manager.clock import wall_s
from varuna_manager.cloud import processes
from varuna_manager.cloud.pool_file import PoolFile, Role, Started
from varuna_manager.cloud.processes import ProcessId
from varuna_manager.cloud.provider import Instance, InstancePhase, ProviderError, Trouble
from varuna_manager.home import Home
from varuna_runtime.spec.errors import InvalidInput

Ticket = Callable[[str], str]
"""(node) -> text with which its agent joins; empty where none is needed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentLaunch:
    """How new agents are started; None leaves the choice to the agent."""

    manager: str  # HOST:PORT
    slots: int = 1
    memory_bytes: int | None = None  # per slot
    copies_bytes: int | None = None  # of the machine's memory, for copies of ranks' state
    ticket: Ticket | None = None


def total_bytes() -> int:
    """Return the memory that all processes of this machine or container may use."""
    found = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    limit = Path("/sys/fs/cgroup/memory.max")
    text = limit.read_text().strip() if limit.is_file() else "max"
    return min(found, int(text)) if text.isdigit() else found


def fair_share(machine_bytes: int, num_nodes: int) -> int:
    """Return what one of `num_nodes` nodes of a machine may claim of its memory.

    Four fifths of it go to nodes. A node never gets more than an eighth of that, because it cannot give
    any back: so up to eight nodes fit together in whatever order they are added.
    """
    return machine_bytes * 4 // 5 // max(num_nodes, 8)


def copies_share(machine_bytes: int, num_nodes: int) -> int | None:
    """Return what each of `num_nodes` nodes may take for copies: a quarter of the machine's memory in all."""
    return machine_bytes // 4 // max(num_nodes, 1) or None


POOL_MARK = "VARUNA_POOL"
"""Carried by all that a local pool starts, so that it is found even if its record was never written."""

AgentCommand = Callable[[AgentLaunch, str, str], Sequence[str]]
"""(launch, node, folder of the node) -> command line."""


class LocalMachines:
    """The agents of one pool of this machine; a node whose process has ended is gone.

    `pool` is empty for those of `varuna up`. `command` is for tests that need no real agent.
    """

    def __init__(self, home: Home, pool: str = "", *, command: AgentCommand | None = None) -> None:
        self._home = home
        self._pool = pool
        self._file = PoolFile(home.pool_file)
        self._command = command or agent_command

    def list_nodes(self) -> tuple[Instance, ...]:
        """Return every node of this pool started since the last `varuna down`, sorted by id."""
        agents = [s for s in self.started() if s.role is Role.AGENT and s.pool == self._pool]
        return tuple(_seen(agent) for agent in sorted(agents, key=lambda s: s.name))

    def started(self) -> tuple[Started, ...]:
        """Return every recorded process of all pools, the manager included, alive or not."""
        try:
            return self._file.read().started
        except (OSError, InvalidInput) as err:
            raise ProviderError(f"cannot read {self._home.pool_file}: {err}", trouble=Trouble.CONFIG) from err

    def add(self, launch: AgentLaunch, count: int = 1, *, label: str = "") -> tuple[str, ...]:
        """Start `count` agents and return their ids: a label and a number that is not used again."""
        return tuple(self._add_one(launch, label or self._pool or "local") for _ in range(count))

    def start_manager(self, command: Sequence[str]) -> ProcessId:
        """Start `command` as this home's manager, detached, its output in manager/manager.log."""
        self._home.manager.mkdir(parents=True, exist_ok=True)
        with self._file.locked() as pool:
            process = self._spawn(command, self._home.manager_log)
            self._file.write(pool.with_started(Started(name="manager", role=Role.MANAGER, process=process)))
        return process

    def kill(self, node: str) -> None:
        """Kill the agent of `node`, if it lives; its guard ends what it started."""
        processes.send(self._agent(node).process, signal.SIGKILL)

    def known(self, nodes: Sequence[str]) -> tuple[str, ...]:
        """Return these nodes; InvalidInput if one was never of this pool."""
        return tuple(self._agent(node).name for node in nodes)

    def notice(self, node: str, in_s: float) -> None:
        """Write the node's notice file; its agent reports it and vanishes at the deadline."""
        self.notice_at(node, wall_s() + in_s)

    def notice_at(self, node: str, deadline_s: float) -> None:
        """Do the same with a deadline in Unix time."""
        self._any_agent(node)
        files.replace(self._home.node(node) / "notice.json", json.dumps({"deadline_unix": deadline_s}))

    def withdraw_notice(self, node: str) -> None:
        """Remove the node's notice file."""
        self._any_agent(node)
        (self._home.node(node) / "notice.json").unlink(missing_ok=True)

    def signal_all(self, signum: signal.Signals) -> tuple[Started, ...]:
        """Signal every recorded process of all pools that lives and return those, agents first."""
        agents_first = sorted(self.started(), key=lambda s: (s.role is Role.MANAGER, s.name))
        return tuple(s for s in agents_first if processes.send(s.process, signum))

    def forget_all(self) -> None:
        """Remove the record of all pools; refused while something recorded lives."""
        with self._file.locked() as pool:
            alive = [s.name for s in pool.started if processes.is_alive(s.process)]
            if alive:
                raise InvalidInput(f"still running: {', '.join(alive)}; end them first")
            self._file.remove()

    def _agent(self, node: str) -> Started:
        agents = [s for s in self.started() if s.role is Role.AGENT and s.pool == self._pool]
        return _named(node, agents, f"pool {self._pool}" if self._pool else "local pool")

    def _any_agent(self, node: str) -> Started:
        return _named(node, [s for s in self.started() if s.role is Role.AGENT], "local pool")

    def _add_one(self, launch: AgentLaunch, label: str) -> str:
        with self._file.locked() as pool:
            pool = replace(pool, last_number=pool.last_number + 1)
            node = f"{label}-{pool.last_number}"
            folder = self._home.node(node)
            folder.mkdir(parents=True, exist_ok=True)
            ticket = launch.ticket(node) if launch.ticket is not None else ""
            command = self._command(launch, node, str(folder))
            command = (*command, *(("--join", "-") if ticket else ("--insecure-plaintext",)))
            process = self._spawn(command, folder / "agent.log", ticket)
            started = Started(name=node, role=Role.AGENT, process=process, pool=self._pool)
            self._file.write(pool.with_started(started))
        return node

    def _spawn(self, command: Sequence[str], log: os.PathLike[str], told: str = "") -> ProcessId:
        with open(log, "ab") as output:  # noqa: PTH123 - os.PathLike, not Path
            child = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if told else subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
                env={**os.environ, "VARUNA_HOME": str(self._home.root), POOL_MARK: str(self._home.root)},
            )
        if child.stdin is not None:
            with contextlib.suppress(BrokenPipeError):  # it ended already: found out below
                child.stdin.write(f"{told}\n".encode())  # shorter than any pipe: it never blocks
                child.stdin.close()
        child.returncode = 0  # detached on purpose: it outlives us and is never waited for
        found = processes.identify(child.pid)
        if found is None:
            raise ProviderError(f"{command[0]} ended at once; see {log}", trouble=Trouble.CONFIG)
        return found


def agent_command(launch: AgentLaunch, node: str, folder: str) -> tuple[str, ...]:
    """Return the command line of a local agent."""
    command = [sys.executable, "-m", "varuna_runtime.agent", "--manager", launch.manager]
    command += ["--node", node, "--home", folder, "--slots", str(launch.slots)]
    if launch.memory_bytes is not None:
        command += ["--memory-bytes", str(launch.memory_bytes)]
    if launch.copies_bytes is not None:
        command += ["--copies-bytes", str(launch.copies_bytes)]
    return tuple(command)


def _named(node: str, agents: Sequence[Started], pool: str) -> Started:
    found = next((s for s in agents if s.name == node), None)
    if found is None:
        known = ", ".join(sorted(s.name for s in agents)) or "none"
        raise InvalidInput(f"no node {node} in the {pool}; its nodes: {known}")
    return found


def _seen(agent: Started) -> Instance:
    if processes.is_alive(agent.process):
        return Instance(node=agent.name, phase=InstancePhase.RUNNING)
    processes.reap(agent.process)
    return Instance(
        node=agent.name, phase=InstancePhase.GONE, reason=f"its process {agent.process.pid} has ended"
    )
