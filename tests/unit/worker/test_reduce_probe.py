import threading
from itertools import count

import pytest
import torch

from tests.support.patient import PatientLink
from varuna_runtime.spec.profile import ReduceCost
from varuna_runtime.worker.link.memory import MemoryNetwork
from varuna_runtime.worker.reduce_probe import LONGEST_S, SIZES, measure_reductions

CPU = torch.device("cpu")


def measured(step_s: float, *, crosses_nodes: bool = True) -> dict[int, tuple[ReduceCost, ...]]:
    """Both ranks measure; the clock moves `step_s` at each look."""
    moved = threading.Condition()
    network = MemoryNetwork(2)
    found: dict[int, tuple[ReduceCost, ...]] = {}

    def run(rank: int) -> None:
        link, ticks = PatientLink(network, rank, moved), count()
        found[rank] = measure_reductions(
            link, CPU, clock=lambda: next(ticks) * step_s, crosses_nodes=crosses_nodes
        )

    threads = [threading.Thread(target=run, args=(rank,)) for rank in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    return found


def test_every_size_has_its_time_as_rank_0_saw_it() -> None:
    found = measured(1e-3, crosses_nodes=False)
    assert [one.num_bytes for one in found[0]] == list(SIZES)
    assert [one.seconds for one in found[0]] == pytest.approx([1e-3] * len(SIZES))
    assert all(one.replicas == 2 and not one.crosses_nodes for one in found[0])
    assert found[1] == ()


def test_a_slow_line_is_not_filled_with_the_largest_sums() -> None:
    found = measured(LONGEST_S / 2)
    assert [one.num_bytes for one in found[0]] == list(SIZES[:1])
    assert found[0][0].crosses_nodes
