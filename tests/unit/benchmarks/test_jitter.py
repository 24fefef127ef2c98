from itertools import pairwise

import pytest
import torch

from benchmarks.jitter import BACKWARD, FORWARD, MOST_S, SHARE, Channel, LateLink, delay_s
from benchmarks.jitter_simulation import step_s
from varuna_runtime.spec.layout import ScheduleKind
from varuna_runtime.spec.schedule import OpKind
from varuna_runtime.worker.link.memory import MemoryNetwork

SECONDS = {
    OpKind.FORWARD: 1.0,
    OpKind.RECOMPUTE: 1.0,
    OpKind.BACKWARD: 2.0,
    OpKind.INPUT: 1.0,
    OpKind.WEIGHT: 1.0,
}


def test_a_tenth_of_the_messages_is_late_and_none_by_more_than_the_cap() -> None:
    delays = [delay_s(r, 1, FORWARD, i) for r in range(100) for i in range(100)]
    late = [d for d in delays if d]
    assert abs(len(late) / len(delays) - SHARE) < 0.01
    assert max(delays) <= MOST_S
    assert delays == [delay_s(r, 1, FORWARD, i) for r in range(100) for i in range(100)]
    assert delays != [delay_s(r, 1, BACKWARD, i) for r in range(100) for i in range(100)]


def test_messages_of_a_channel_are_due_in_order() -> None:
    channel = Channel(0, FORWARD)
    due = [channel.due_s() for _ in range(50)]
    assert all(a <= b for a, b in pairwise(due))


@pytest.mark.parametrize("kind", [ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B, ScheduleKind.WORK_CONSERVING])
def test_without_late_messages_a_step_is_as_long_as_its_bubble_says(kind: ScheduleKind) -> None:
    found = step_s(
        kind, num_stages=4, num_micro=8, seconds=SECONDS, late=lambda b, d, i: 0.0, recompute=False
    )
    assert found == (8 + 4 - 1) * 3.0


def test_a_late_message_delays_those_behind_it_and_the_step() -> None:
    found = step_s(
        ScheduleKind.GPIPE,
        num_stages=2,
        num_micro=2,
        seconds=SECONDS,
        late=lambda boundary, direction, index: 5.0 if (direction, index) == (FORWARD, 0) else 0.0,
        recompute=False,
    )
    assert found == 1.0 + 5.0 + 2 * 1.0 + 2 * 2.0 + 2.0


def test_a_late_link_passes_everything_on_in_the_end() -> None:
    network = MemoryNetwork(2)
    sender, receiver = (LateLink(network.link(r), stage=r) for r in range(2))
    sender.begin(next(r for r in range(100) if delay_s(r, 0, FORWARD, 0) == 0.0))
    value = torch.ones(2, requires_grad=True)
    sender.send(1, FORWARD, (value,))
    sender.send(1, "losses", (value,))
    (early,) = receiver.poll(0, FORWARD) or ()
    (other,) = receiver.poll(0, "losses") or ()
    assert early.equal(value)
    assert other.equal(value)
    assert early.requires_grad
    assert receiver.poll(0, FORWARD) is None
