"""A pool in memory."""

from collections.abc import Sequence

from varuna_manager.cloud.provider import Instance, InstancePhase, PoolReading, ProviderError, Trouble
from varuna_runtime.spec.errors import InvalidInput


class FakeProvider:
    """Obeys the provider contract; `fails` makes every call raise until it is cleared."""

    def __init__(self) -> None:
        self.fails = ""
        self.notices: dict[str, float] = {}
        self._nodes: dict[str, InstancePhase] = {}

    def list_nodes(self) -> tuple[Instance, ...]:
        self._answer()
        return tuple(
            Instance(node=n, phase=s, reason="terminated" if s is InstancePhase.GONE else "")
            for n, s in sorted(self._nodes.items())
        )

    def add(self, count: int) -> tuple[str, ...]:
        self._answer()
        new = tuple(f"fake-{len(self._nodes) + i}" for i in range(count))
        self._nodes.update(dict.fromkeys(new, InstancePhase.RUNNING))
        return new

    def adopt(self, node: str) -> None:
        self._nodes[node] = InstancePhase.RUNNING

    def read(self, now_s: float) -> PoolReading:
        nodes = self.list_nodes()
        alive = sum(n.phase is InstancePhase.RUNNING for n in nodes)
        return PoolReading(instances=nodes, desired=alive, least=0, most=1000)

    def grow(self, desired: int, seen: PoolReading) -> None:
        if desired <= seen.desired:
            raise InvalidInput(f"cannot grow to {desired}")
        self.add(max(0, desired - self.read(0.0).desired))

    def release(self, nodes: Sequence[str], seen: PoolReading) -> None:
        for node in nodes:
            self._known(node)
        for node in nodes:
            self.terminate(node)

    def give_up(self, seen: PoolReading) -> None:
        self._answer()

    def let_go(self, node: str, seen: PoolReading) -> None:
        self._answer()

    def terminate(self, node: str) -> None:
        self._known(node)
        self._nodes[node] = InstancePhase.GONE

    def notice(self, node: str, in_s: float) -> None:
        self._known(node)
        self.notices[node] = in_s

    def withdraw_notice(self, node: str) -> None:
        self._known(node)
        self.notices.pop(node, None)

    def _answer(self) -> None:
        if self.fails:
            raise ProviderError(self.fails, trouble=Trouble.RETRY)

    def _known(self, node: str) -> None:
        self._answer()
        if node not in self._nodes:
            raise InvalidInput(f"no node {node}")
