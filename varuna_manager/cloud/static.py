"""Nodes that dial in by themselves: nothing is known of them but what their agents say."""

from collections.abc import Sequence

from varuna_manager.cloud.provider import PoolReading
from varuna_runtime.spec.errors import InvalidInput


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
