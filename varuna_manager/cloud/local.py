"""A pool on this machine: its nodes are agent processes."""

from collections.abc import Sequence

from varuna_manager.cloud.local_machines import (
    AgentLaunch,
    LocalMachines,
    Ticket,
    copies_share,
    fair_share,
    total_bytes,
)
from varuna_manager.cloud.provider import InstancePhase, PoolReading
from varuna_manager.home import Home
from varuna_manager.pool_settings import LocalPool
from varuna_runtime.spec.errors import InvalidInput

MOST_NODES = 1000


def open_local(
    settings: LocalPool, *, home: Home, manager_address: str, ticket: Ticket | None = None
) -> "LocalProvider":
    """Return the provider of a pool of this machine."""
    if not settings.sized:
        return LocalProvider(LocalMachines(home))
    launch = AgentLaunch(
        manager=manager_address,
        slots=settings.slots,
        memory_bytes=fair_share(total_bytes(), settings.max) // settings.slots,
        copies_bytes=copies_share(total_bytes(), settings.max),
        ticket=ticket,
    )
    return LocalProvider(LocalMachines(home, settings.name), launch)


class LocalProvider:
    """Without `launch` only `varuna up` starts nodes, and the bounds say so; with it, this does.

    Nothing replaces a process that ended, so the target falls with it.
    """

    def __init__(self, machines: LocalMachines, launch: AgentLaunch | None = None) -> None:
        self._machines = machines
        self._launch = launch

    def read(self, now_s: float) -> PoolReading:
        """Return the recorded agents of this pool."""
        nodes = self._machines.list_nodes()
        alive = sum(node.phase is InstancePhase.RUNNING for node in nodes)
        least, most = (0, MOST_NODES) if self._launch else (alive, alive)
        return PoolReading(instances=nodes, desired=alive, least=least, most=most)

    def grow(self, desired: int, seen: PoolReading) -> None:
        """Start as many agents as are missing now."""
        if self._launch is None:
            raise InvalidInput("cannot add nodes: only `varuna up` does; set `sized: true` for this pool")
        if desired <= seen.desired:
            raise InvalidInput(f"cannot grow to {desired}: {seen.desired} nodes run already")
        if desired > seen.most:
            raise InvalidInput(f"cannot grow to {desired}: at most {seen.most} nodes fit")
        missing = desired - self.read(0.0).desired
        if missing > 0:
            self._machines.add(self._launch, missing)

    def release(self, nodes: Sequence[str], seen: PoolReading) -> None:
        """Kill these agents."""
        for node in self._machines.known(nodes):
            self._machines.kill(node)

    def give_up(self, seen: PoolReading) -> None:
        """Do nothing: a process either starts or does not."""

    def let_go(self, node: str, seen: PoolReading) -> None:
        """Do nothing: no process waits for our word."""
