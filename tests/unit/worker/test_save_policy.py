from typing import Literal

import pytest

from varuna_runtime.checkpoint.writer import Durable
from varuna_runtime.worker.saving import SavePolicy


def test_a_fixed_interval_counts_steps_since_the_last_save() -> None:
    policy = SavePolicy(interval_steps=3, last_step=4, last_s=0.0)
    assert [policy.is_due(step=step, now_s=0.0) for step in (5, 6, 7)] == [False, False, True]
    policy.begun(step=7, now_s=0.0)
    assert not policy.is_due(step=8, now_s=0.0)


def test_auto_waits_in_proportion_to_what_a_save_costs() -> None:
    policy = SavePolicy(interval_steps="auto", last_step=0, last_s=10.0)
    assert not policy.is_due(step=1, now_s=11.9)
    assert policy.is_due(step=1, now_s=12.0)
    policy.mtbf_s = 100.0
    policy.cost.stalled(0.5)
    policy.learnt(Durable(step=1, stall_s=0.5, elapsed_s=1.0))
    policy.begun(step=1, now_s=12.0)
    assert not policy.is_due(step=2, now_s=21.9)
    assert policy.is_due(step=2, now_s=22.0)


@pytest.mark.parametrize("interval", [1, "auto"])
def test_saves_that_fail_are_tried_ever_more_rarely_up_to_once_a_minute(
    interval: int | Literal["auto"],
) -> None:
    policy = SavePolicy(interval_steps=interval, last_step=0, last_s=0.0, wait_s=600.0)
    for pause_s in (2.0, 4.0, 8.0, 16.0, 32.0, 60.0, 60.0):
        policy.failed()
        assert not policy.is_due(step=9, now_s=pause_s - 0.1)
        assert policy.is_due(step=9, now_s=pause_s)
    policy.learnt(Durable(step=1, stall_s=0.0, elapsed_s=0.1))
    assert policy.is_due(step=9, now_s=2.0)
