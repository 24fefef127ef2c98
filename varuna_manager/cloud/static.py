"""Nodes that dial in by themselves: nothing is known of them but what their agents say."""

from varuna_manager.cloud.provider import ProviderNode
from varuna_runtime.spec.errors import InvalidInput


class StaticProvider:
    """Lists nothing, so that heartbeats alone decide."""

    def list_nodes(self) -> tuple[ProviderNode, ...]:
        """Return nothing: no node is ours to know."""
        return ()

    def add(self, count: int) -> tuple[str, ...]:
        """Refuse: nobody can be asked for a node."""
        raise InvalidInput(f"cannot add {count} nodes to a static pool; start `varuna agent` on each machine")

    def terminate(self, node: str) -> None:
        """Refuse: the machine belongs to someone else."""
        raise InvalidInput(f"cannot terminate {node}: the pool is static; drain it and stop its agent there")

    def notice(self, node: str, in_s: float) -> None:
        """Refuse: a static node has no notice source."""
        raise InvalidInput(f"cannot give {node} a notice of {in_s:g} s: the pool is static; drain it instead")

    def withdraw_notice(self, node: str) -> None:
        """Do nothing: there is never a notice."""
