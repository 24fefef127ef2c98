"""The newest memory of sizing, for whoever shows it; the keeper alone writes it."""

from varuna_manager.sizing.memory import Memory
from varuna_manager.sizing.settings import Settings
from varuna_manager.sizing.status import PoolView, pool_views


class Books:
    """What the manager knows of its pools by now."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.memory = Memory()

    def views(self, now_s: float) -> tuple[PoolView, ...]:
        """Return all pools in the order of the file."""
        return pool_views(self.memory, self.settings, now_s)

    def shortage(self, now_s: float) -> str:
        """Return why the pools cannot give more nodes, for a job that waits for them; empty if they can."""
        return "; ".join(_words(view) for view in self.views(now_s) if view.reason and self._is_sized(view))

    def pool_of(self, node: str) -> str:
        """Return the pool whose provider lists the node's machine; empty if none does."""
        return next((name for name, pool in self.memory.pools.items() if node in pool.machines), "")

    def _is_sized(self, view: PoolView) -> bool:
        return self.settings.of(view.pool).is_sized


def _words(view: PoolView) -> str:
    next_try = f", next try in {view.retry_in_s:.0f} s" if view.retry_in_s > 0 else ""
    return f"pool {view.pool}: {view.reason}{next_try}"
