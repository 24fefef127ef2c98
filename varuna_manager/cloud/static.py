"""Machines that are there anyway: some dial in by themselves, the agents of others we start over ssh."""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from varuna_manager.cloud.local_machines import Ticket
from varuna_manager.cloud.opening import Notes
from varuna_manager.cloud.provider import (
    Instance,
    InstancePhase,
    PoolReading,
    Provider,
    ProviderError,
    Trouble,
)
from varuna_manager.cloud.ssh import Found, Life, Ssh
from varuna_manager.pool_settings import SshHost, StaticPool
from varuna_runtime.spec.errors import InvalidInput

_AT_ONCE = 16
T = TypeVar("T")


def open_static(
    settings: StaticPool, *, notes: Notes, manager_address: str, ticket: Ticket | None = None
) -> Provider:
    """Return the provider of a static pool."""
    if not settings.hosts:
        return StaticProvider()
    return SshProvider(settings, notes=notes, manager_address=manager_address, ticket=ticket)


class StaticProvider:
    """Lists nothing, so that heartbeats alone decide."""

    def read(self, now_s: float) -> PoolReading:
        """Return an empty pool: no node is ours to know."""
        return PoolReading(instances=(), desired=0, least=0, most=0)

    def grow(self, desired: int, seen: PoolReading) -> None:
        """Refuse: nobody can be asked for a node."""
        raise InvalidInput(f"cannot grow a static pool to {desired}; start `varuna agent` on each machine")

    def release(self, nodes: Sequence[str], seen: PoolReading) -> None:
        """Refuse: the machines belong to someone else."""
        raise InvalidInput(f"cannot end {', '.join(nodes)}: the pool is static; drain them instead")

    def give_up(self, seen: PoolReading) -> None:
        """Do nothing: nothing was asked for."""

    def let_go(self, node: str, seen: PoolReading) -> None:
        """Do nothing: no machine waits for us."""


class SshProvider:
    """A node is a host whose agent runs; it is missing while none does, and may come back by its name.

    A host that does not answer keeps the state it had: unreachable is not gone. Nothing replaces an agent
    that ended, so the target falls with it.
    """

    def __init__(
        self,
        settings: StaticPool,
        *,
        notes: Notes,
        manager_address: str,
        ticket: Ticket | None = None,
        ssh: Ssh | None = None,
    ) -> None:
        self._settings = settings
        self._notes = notes
        self._manager = manager_address
        self._ticket = ticket
        self._ssh = ssh or Ssh()

    def read(self, now_s: float) -> PoolReading:
        """Ask every host; ProviderError if none answers."""
        states = self._states()
        alive = [host.node for host, state in states if self._lives(host, state)]
        nodes = tuple(Instance(node=node, phase=InstancePhase.RUNNING) for node in sorted(alive))
        warnings = tuple(text for host, state in states if (text := _warning(host, state)))
        return PoolReading(
            instances=nodes, desired=len(nodes), least=0, most=len(self._settings.hosts), warnings=warnings
        )

    def grow(self, desired: int, seen: PoolReading) -> None:
        """Start agents on hosts without one, in the order of the settings, until `desired` live."""
        if desired <= seen.desired:
            raise InvalidInput(f"cannot grow to {desired}: {seen.desired} agents run already")
        states = self._states()
        missing = desired - sum(self._lives(host, state) for host, state in states)
        free = [
            h for h, state in states if not self._lives(h, state) and not isinstance(state, ProviderError)
        ]
        failures: list[ProviderError] = []
        while missing > 0 and free:
            batch, free = free[:missing], free[missing:]
            failed = _failed(_at_once(self._start, batch))
            failures += failed
            missing -= len(batch) - len(failed)
        if missing > 0:
            raise (
                failures[0]
                if failures
                else ProviderError(
                    f"no host is free for {missing} of {desired} agents", trouble=Trouble.CAPACITY
                )
            )

    def release(self, nodes: Sequence[str], seen: PoolReading) -> None:
        """End these agents; every one is tried before a failure is raised."""
        by_node = {host.node: host for host in self._settings.hosts}
        unknown = sorted(set(nodes) - by_node.keys())
        if unknown:
            raise InvalidInput(
                f"no node {', '.join(unknown)} in pool {self._settings.name}; its nodes: {', '.join(by_node)}"
            )
        failed = _failed(_at_once(self._end, [by_node[node] for node in dict.fromkeys(nodes)]))
        if failed:
            raise failed[0]

    def give_up(self, seen: PoolReading) -> None:
        """Do nothing: an agent either starts or does not."""

    def let_go(self, node: str, seen: PoolReading) -> None:
        """Do nothing: no machine waits for us."""

    def _states(self) -> list[tuple[SshHost, Found | ProviderError]]:
        states = _at_once(self._ssh.look, self._settings.hosts)
        for host, state in states:
            if not isinstance(state, ProviderError) and state.life is not Life.ALIVE:
                self._notes.remove(host.node)
            elif not isinstance(state, ProviderError):
                self._notes.put(host.node, "lived")
        failed = _failed(states)
        if failed and len(failed) == len(states):
            raise failed[0]
        return states

    def _lives(self, host: SshHost, state: Found | ProviderError) -> bool:
        if isinstance(state, ProviderError):
            return self._notes.get(host.node) is not None
        return state.life is Life.ALIVE

    def _start(self, host: SshHost) -> None:
        ticket = self._ticket(host.node) if self._ticket is not None else ""
        self._ssh.start(host, manager=self._manager, command=self._settings.command, ticket=ticket)

    def _end(self, host: SshHost) -> None:
        self._ssh.end(host)
        self._notes.remove(host.node)


def _at_once(
    call: Callable[[SshHost], T], hosts: Sequence[SshHost]
) -> list[tuple[SshHost, T | ProviderError]]:
    """Return what the call answers for each host, or why it failed."""

    def answer(host: SshHost) -> T | ProviderError:
        try:
            return call(host)
        except ProviderError as err:
            return err

    with ThreadPoolExecutor(max_workers=_AT_ONCE) as threads:
        return list(zip(hosts, threads.map(answer, hosts), strict=True))


def _failed(answers: Sequence[tuple[SshHost, object]]) -> list[ProviderError]:
    return [answer for _, answer in answers if isinstance(answer, ProviderError)]


def _warning(host: SshHost, state: Found | ProviderError) -> str:
    if isinstance(state, ProviderError):
        return f"{host.node} cannot be asked: {state}"
    if state.life is Life.ENDED:
        return f"the agent of {host.node} has ended: {state.last_words or 'without a word'}"
    return ""
