"""The newest memory of sizing, for whoever shows it; the keeper alone writes it."""

from collections.abc import Container, Iterator

from varuna_manager.cloud.provider import InstancePhase
from varuna_manager.core.words import counted
from varuna_manager.sizing.memory import Memory
from varuna_manager.sizing.settings import Settings
from varuna_manager.sizing.status import PoolView, pool_views

_ON_THEIR_WAY = frozenset({InstancePhase.STARTING, InstancePhase.RUNNING})


class Books:
    """What the manager knows of its pools by now."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.memory = Memory()

    def views(self, now_s: float) -> tuple[PoolView, ...]:
        """Return all pools in the order of the file."""
        return pool_views(self.memory, self.settings, now_s)

    def shortage(self, now_s: float, known: Container[str]) -> str:
        """Return what a job that waits for nodes waits for in the pools; `known`: nodes that have joined."""
        sized = [view for view in self.views(now_s) if self._is_sized(view)]
        return "; ".join(why for view in sized for why in self._reasons(view, known))

    def pool_of(self, node: str) -> str:
        """Return the pool whose provider lists the node's machine; empty if none does."""
        return next((name for name, pool in self.memory.pools.items() if node in pool.machines), "")

    def _reasons(self, view: PoolView, known: Container[str]) -> Iterator[str]:
        """Yield why the pool has not given more; its bounds do not matter while machines boot."""
        if booting := self._booting(view, known):
            yield booting
        if view.reason and (not booting or view.retry_in_s > 0):
            yield _words(view)

    def _booting(self, view: PoolView, known: Container[str]) -> str:
        reading = self.memory.of(view.pool).reading
        machines = reading.instances if reading is not None else ()
        num = sum(m.phase in _ON_THEIR_WAY and m.node not in known for m in machines)
        return f"pool {view.pool}: the agents of {counted(num, 'machine')} have not joined yet" if num else ""

    def _is_sized(self, view: PoolView) -> bool:
        return self.settings.of(view.pool).is_sized


def _words(view: PoolView) -> str:
    next_try = f", next try in {view.retry_in_s:.0f} s" if view.retry_in_s > 0 else ""
    return f"pool {view.pool}: {view.reason}{next_try}"
