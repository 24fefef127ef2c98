import threading

import pytest
import torch
from torch import Tensor

from tests.support.patient import PatientLink
from tests.support.planning import profile, segment
from varuna_runtime.spec.generation import Fault
from varuna_runtime.spec.profile import LinkCost
from varuna_runtime.worker.link.memory import MemoryNetwork
from varuna_runtime.worker.link_fit import link_cost
from varuna_runtime.worker.link_probe import measure_link, with_inner_link, with_link


class AnsweringLink:
    """Rank 0's end of a link of known cost each way, in virtual time; its peer answers at once.

    While both directions carry a message each takes `slowdown` times as long.
    """

    rank = 0

    def __init__(
        self, there: LinkCost, back: LinkCost, *, burst_bytes: int = 0, slowdown: float = 1.0
    ) -> None:
        self.now_s = 0.0
        self._there, self._back, self._burst_bytes = there, back, burst_bytes
        self._slowdown = slowdown
        self._answers: list[tuple[float, Tensor]] = []  # with when they are here
        self._asked_s = 0.0  # when the peer heard of the newest question
        self.longest_bytes = 0

    def read(self) -> float:
        return self.now_s

    def send(self, to: int, tag: str, tensors: tuple[Tensor, ...], *, can_wait: bool = False) -> None:
        (tensor,) = tensors
        if tensor.dtype is torch.float64:
            return  # the figures
        if tensor.dtype is torch.uint8:
            here_s = self.now_s + self._takes_s(self._there, tensor.numel())
            report = torch.tensor([here_s - self._asked_s], dtype=torch.float64)
            self._answers.append((here_s + self._back.latency_s, report))
        elif (answer_bytes := int(tensor)) > 0:
            self._asked_s = self.now_s + self._there.latency_s
            here_s = self._asked_s + self._takes_s(self._back, answer_bytes)
            self._answers.append((here_s, torch.zeros(answer_bytes, dtype=torch.uint8)))

    def _takes_s(self, cost: LinkCost, num_bytes: int) -> float:
        self.longest_bytes = max(self.longest_bytes, num_bytes)
        bulk_s = max(num_bytes - self._burst_bytes, 0) * 8 / cost.bandwidth_bps
        return cost.latency_s + bulk_s * self._slowdown

    def poll(self, source: int, tag: str) -> tuple[Tensor, ...] | None:
        if not self._answers:
            return None
        here_s, answer = self._answers.pop(0)
        self.now_s = max(self.now_s, here_s)
        return (answer,)

    def wait(self) -> None:
        raise AssertionError("the answer is there at once")

    def abort(self, fault: Fault) -> None:
        raise AssertionError("nothing fails")

    def close(self) -> None:
        return None


FAST = LinkCost(latency_s=1e-3, bandwidth_bps=1e10)


def test_latency_and_bandwidth_are_found_from_small_and_bulk_messages() -> None:
    link = AnsweringLink(FAST, FAST)
    found = measure_link(link, 1, clock=link.read)
    assert found.latency_s == pytest.approx(FAST.latency_s, rel=1e-4)
    assert found.bandwidth_bps == pytest.approx(FAST.bandwidth_bps, rel=1e-4)
    assert found.late_s == pytest.approx([0.0] * 21, abs=1e-6)


@pytest.mark.parametrize("is_back", [False, True])
def test_the_slower_direction_counts(is_back: bool) -> None:
    slow = LinkCost(latency_s=1e-3, bandwidth_bps=2e9)
    link = AnsweringLink(FAST, slow) if is_back else AnsweringLink(slow, FAST)
    assert measure_link(link, 1, clock=link.read).bandwidth_bps == pytest.approx(2e9, rel=1e-3)


def test_bandwidth_is_what_a_direction_has_while_the_other_is_busy() -> None:
    link = AnsweringLink(FAST, FAST, slowdown=1.25)
    found = measure_link(link, 1, clock=link.read)
    assert found.bandwidth_bps == pytest.approx(FAST.bandwidth_bps / 1.25, rel=1e-3)


def test_a_burst_that_passes_at_once_makes_neither_a_negative_latency_nor_more_bandwidth() -> None:
    shaped = LinkCost(latency_s=1e-4, bandwidth_bps=1e9)
    link = AnsweringLink(shaped, shaped, burst_bytes=2**16)
    found = measure_link(link, 1, clock=link.read)
    assert found.latency_s == pytest.approx(1e-4)
    assert found.bandwidth_bps == pytest.approx(1e9, rel=1e-3)


def test_a_slow_line_is_not_filled_with_the_largest_messages() -> None:
    slow = LinkCost(latency_s=1e-2, bandwidth_bps=2e7)
    link = AnsweringLink(slow, slow)
    found = measure_link(link, 1, clock=link.read)
    assert found.bandwidth_bps == pytest.approx(2e7, rel=1e-3)
    assert link.longest_bytes == 2**18


def test_messages_that_come_late_are_told_as_lateness_and_change_no_cost() -> None:
    small = [1e-3] * 10
    times = {2**18: [2e-3] * 10, 2**20: [5e-3] * 10}
    late = {size: [*each[:-1], each[-1] + 0.5] for size, each in times.items()}
    steady, jittery = link_cost(small, [times, times]), link_cost(small, [late, times])
    assert (jittery.latency_s, jittery.bandwidth_bps) == (steady.latency_s, steady.bandwidth_bps)
    assert steady.late_s[-1] < 1e-3
    assert jittery.late_s[10] < 1e-3
    assert jittery.late_s[-1] > 0.4


def test_times_that_shrink_with_size_still_give_a_cost() -> None:
    found = link_cost([1e-3], [{10: [5e-3], 1000: [4e-3]}])
    assert found.bandwidth_bps == pytest.approx(8 * 1000 / 3e-3)
    nothing = link_cost([1e-3], [{10: [1e-3], 1000: [1e-4]}])
    assert nothing.latency_s == 1e-3
    assert 0 < nothing.bandwidth_bps < float("inf")


def test_both_ranks_get_the_same_figures() -> None:
    moved = threading.Condition()
    network = MemoryNetwork(2)
    found: dict[int, LinkCost] = {}

    def run(rank: int) -> None:
        link, ticks = PatientLink(network, rank, moved), iter(range(10**6))
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


def test_a_measured_link_inside_a_node_bounds_the_guess_between_nodes() -> None:
    guessed = profile([segment()], link=LinkCost(latency_s=1e-4, bandwidth_bps=1e10))
    inner = LinkCost(latency_s=1e-3, bandwidth_bps=2e9, late_s=(0.0, 1e-3))
    linked = with_inner_link(guessed, inner, node="a")
    assert linked.same_node == inner
    assert linked.cross_node == LinkCost(latency_s=1e-3, bandwidth_bps=2e9)
    assert linked.measured_on == "a (links between nodes guessed)"
