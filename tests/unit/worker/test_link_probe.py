import threading

import pytest
from torch import Tensor

from tests.support.planning import profile, segment
from varuna_runtime.spec.profile import LinkCost
from varuna_runtime.worker.link.memory import MemoryLink, MemoryNetwork
from varuna_runtime.worker.link_probe import BULK_BYTES, measure_link, with_link


class VirtualTime:
    """A clock that moves with the bytes sent over a link of known cost."""

    def __init__(self, cost: LinkCost) -> None:
        self.now_s = 0.0
        self._cost = cost

    def read(self) -> float:
        return self.now_s

    def carry(self, num_bytes: int) -> None:
        self.now_s += self._cost.latency_s + num_bytes * 8 / self._cost.bandwidth_bps


class EchoingLink:
    """Rank 0's end of a link whose peer answers at once, in virtual time."""

    rank = 0

    def __init__(self, time: VirtualTime) -> None:
        self._time = time
        self._answers: list[tuple[Tensor, ...]] = []
        self.sent: list[tuple[Tensor, ...]] = []

    def send(self, to: int, tag: str, tensors: tuple[Tensor, ...]) -> None:
        self.sent.append(tensors)
        self._answers.append(tensors)
        for _ in ("there", "and back"):
            self._time.carry(tensors[0].numel() * tensors[0].element_size())

    def poll(self, source: int, tag: str) -> tuple[Tensor, ...] | None:
        return self._answers.pop(0) if self._answers else None

    def wait(self) -> None:
        raise AssertionError("the answer is there at once")

    def close(self) -> None:
        return None


class PatientLink(MemoryLink):
    """A memory link for two threads: waiting yields to the other one."""

    def __init__(self, network: MemoryNetwork, rank: int, moved: threading.Condition) -> None:
        super().__init__(network, rank)
        self._moved = moved

    def send(self, to: int, tag: str, tensors: tuple[Tensor, ...]) -> None:
        with self._moved:
            super().send(to, tag, tensors)
            self._moved.notify_all()

    def poll(self, source: int, tag: str) -> tuple[Tensor, ...] | None:
        with self._moved:
            found = super().poll(source, tag)
            if found is None:
                self._moved.wait(timeout=10)
                found = super().poll(source, tag)
            return found

    def wait(self) -> None:
        return None


def test_latency_and_bandwidth_are_found_from_small_and_bulk_messages() -> None:
    time = VirtualTime(LinkCost(latency_s=0.25, bandwidth_bps=8.0 * BULK_BYTES))
    found = measure_link(EchoingLink(time), 1, clock=time.read)
    assert found.latency_s == pytest.approx(0.25, rel=1e-4)
    assert found.bandwidth_bps == pytest.approx(8.0 * BULK_BYTES, rel=1e-4)


def test_both_ranks_get_the_same_figures() -> None:
    moved = threading.Condition()
    network = MemoryNetwork(2)
    ticks = iter(range(10**6))
    found: dict[int, LinkCost] = {}

    def run(rank: int) -> None:
        link = PatientLink(network, rank, moved)
        found[rank] = measure_link(link, 1 - rank, clock=lambda: float(next(ticks)))

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=30)
    assert found[0] == found[1]
    assert found[0].latency_s == 0.5


def test_a_measured_link_replaces_the_guess_between_nodes_and_never_worsens_the_one_inside() -> None:
    guessed = profile([segment()], link=LinkCost(latency_s=1e-4, bandwidth_bps=1e10))
    slow = LinkCost(latency_s=1e-2, bandwidth_bps=1e9)
    linked = with_link(guessed, slow, measured_on="nodes a, b")
    assert linked.cross_node == slow
    assert linked.same_node == guessed.same_node
    assert linked.measured_on == "nodes a, b"
