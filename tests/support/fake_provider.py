"""A pool in memory."""

from varuna_manager.cloud.provider import NodeState, ProviderError, ProviderNode
from varuna_runtime.spec.errors import InvalidInput


class FakeProvider:
    """Obeys the provider contract; `fails` makes every call raise until it is cleared."""

    def __init__(self) -> None:
        self.fails = ""
        self.notices: dict[str, float] = {}
        self._nodes: dict[str, NodeState] = {}

    def list_nodes(self) -> tuple[ProviderNode, ...]:
        self._answer()
        return tuple(
            ProviderNode(node=n, state=s, reason="terminated" if s is NodeState.GONE else "")
            for n, s in sorted(self._nodes.items())
        )

    def add(self, count: int) -> tuple[str, ...]:
        self._answer()
        new = tuple(f"fake-{len(self._nodes) + i}" for i in range(count))
        self._nodes.update(dict.fromkeys(new, NodeState.RUNNING))
        return new

    def adopt(self, node: str) -> None:
        self._nodes[node] = NodeState.RUNNING

    def terminate(self, node: str) -> None:
        self._known(node)
        self._nodes[node] = NodeState.GONE

    def notice(self, node: str, in_s: float) -> None:
        self._known(node)
        self.notices[node] = in_s

    def withdraw_notice(self, node: str) -> None:
        self._known(node)
        self.notices.pop(node, None)

    def _answer(self) -> None:
        if self.fails:
            raise ProviderError(self.fails)

    def _known(self, node: str) -> None:
        self._answer()
        if node not in self._nodes:
            raise InvalidInput(f"no node {node}")
