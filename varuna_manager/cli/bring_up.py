"""Making this machine's pool what was asked for: a serving manager and N living, registered nodes."""

import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from varuna_manager import clock
from varuna_manager.cli.connect import access_to, client_at, last_address
from varuna_manager.client import Client, NodeStatus
from varuna_manager.cloud import processes
from varuna_manager.cloud.local_machines import AgentLaunch, LocalMachines, copies_share, fair_share
from varuna_manager.cloud.pool_file import Role
from varuna_manager.cloud.processes import ProcessId
from varuna_manager.cloud.provider import InstancePhase
from varuna_manager.config import load
from varuna_manager.home import Home
from varuna_manager.pool_settings import LocalPool
from varuna_runtime.agent.device import machine_bytes
from varuna_runtime.spec.errors import InvalidInput, NoManager, VarunaError

MANAGER_WITHIN_S = 60.0
NODES_WITHIN_S = 90.0
_POLL_S = 0.1

T = TypeVar("T")


class NotUp(VarunaError):
    """A process we started ended or did not answer in time; the message shows the end of its log."""


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeShape:
    """What each new node offers."""

    slots: int
    memory_bytes: int | None  # per slot; None: a fair share of the machine's


def ensure_manager(home: Home, port: int | None, settings: Path | None = None) -> str:
    """Return the address of the manager that serves `home`, started with `settings` if there is none.

    Without a port a new one listens where the last one did, because its agents call it there.
    """
    address = last_address()
    if address is not None and answers(address):
        return address
    machines = LocalMachines(home)
    command = manager_command(home, port, settings)
    process = _living_manager(machines) or machines.start_manager(command)
    return _until(
        lambda: _serving(process, home),
        MANAGER_WITHIN_S,
        lambda: f"the manager (pid {process.pid}) does not serve yet; {tail(home.manager_log)}",
    )


def ensure_nodes(home: Home, address: str, count: int, shape: NodeShape) -> tuple[str, ...]:
    """Add nodes until `count` live and return the new ones; it never removes any."""
    memory = shape.memory_bytes or fair_share(machine_bytes(), count) // shape.slots
    machines = LocalMachines(home)
    missing = count - len(living(machines))
    if missing <= 0:
        return ()
    with client_at(address) as client:
        ticket = None if access_to(address) is None else client.create_ticket
        launch = AgentLaunch(
            manager=address,
            slots=shape.slots,
            memory_bytes=memory or None,
            copies_bytes=copies_share(machine_bytes(), count),
            ticket=ticket,
        )
        return machines.add(launch, missing)


def await_nodes(home: Home, address: str) -> tuple[NodeStatus, ...]:
    """Return the manager's view once every living local node is registered with its present process."""
    machines = LocalMachines(home)
    with client_at(address) as client:
        return _until(
            lambda: _all_registered(machines, client),
            NODES_WITHIN_S,
            lambda: _missing(home, machines, client),
        )


def living(machines: LocalMachines) -> tuple[str, ...]:
    """Return the local nodes whose agent runs."""
    return tuple(n.node for n in machines.list_nodes() if n.phase is InstancePhase.RUNNING)


def answers(address: str) -> bool:
    """Return whether a manager serves at `address`."""
    try:
        with client_at(address, timeout_s=5.0) as client:
            client.nodes()
    except NoManager:
        return False
    return True


def tail(log: Path, num_lines: int = 15) -> str:
    """Return the end of a log file for an error message."""
    try:
        lines = log.read_text(errors="replace").splitlines()[-num_lines:]
    except FileNotFoundError:
        return f"{log} does not exist"
    return "\n".join([f"the end of {log}:", *(f"  {line}" for line in lines)])


def manager_command(home: Home, port: int | None, settings: Path | None) -> tuple[str, ...]:
    """Return the command line of a new manager; InvalidInput: its settings do not suit a local pool."""
    command: tuple[str, ...] = (sys.executable, "-m", "varuna_manager.cli", "manager")
    if settings is None:
        return (*command, "--port", str(port or 0))
    loaded = load(settings)  # a mistake is told here, not in the log of a process that ended
    if loaded.places.root.absolute() != home.root.absolute():
        raise InvalidInput(
            f"{settings}: home: seen {loaded.places.root}, wanted {home.root}, where `varuna up` keeps its "
            "pool; leave it out, or set VARUNA_HOME to it"
        )
    if not any(isinstance(pool, LocalPool) for pool in loaded.pools):
        seen = ", ".join(pool.provider for pool in loaded.pools)
        raise InvalidInput(
            f"{settings}: pools: seen {seen}, wanted one with `provider: local`: `varuna up` starts its nodes"
        )
    command = (*command, "--config", str(settings.absolute()))
    return command if port is None else (*command, "--port", str(port))


def _living_manager(machines: LocalMachines) -> ProcessId | None:
    recorded = (s.process for s in machines.started() if s.role is Role.MANAGER)
    return next((process for process in recorded if processes.is_alive(process)), None)


def _serving(process: ProcessId, home: Home) -> str | None:
    address = last_address()
    if address is not None and answers(address):
        return address
    if not processes.is_alive(process):
        raise NotUp(f"the manager ended at once; {tail(home.manager_log)}")
    return None


def _all_registered(machines: LocalMachines, client: Client) -> tuple[NodeStatus, ...] | None:
    return client.nodes() if not _unregistered(machines, client) else None


def _unregistered(machines: LocalMachines, client: Client) -> tuple[str, ...]:
    alive = {s.name: s.process.pid for s in machines.started() if processes.is_alive(s.process)}
    known = {(n.node, n.pid) for n in client.nodes()}
    return tuple(node for node in living(machines) if (node, alive.get(node)) not in known)


def _missing(home: Home, machines: LocalMachines, client: Client) -> str:
    nodes = _unregistered(machines, client)
    logs = "\n".join(tail(home.node(node) / "agent.log") for node in nodes)
    return f"not registered in time: {', '.join(nodes)}\n{logs}"


def _until(attempt: Callable[[], T | None], within_s: float, complaint: Callable[[], str]) -> T:
    give_up_at = clock.monotonic_s() + within_s
    while (found := attempt()) is None:
        if clock.monotonic_s() > give_up_at:
            raise NotUp(complaint())
        time.sleep(_POLL_S)
    return found
