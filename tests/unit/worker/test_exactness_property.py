"""Whatever is drawn, the ranks end with the bits of a plain PyTorch loop on the uncut model."""

import pytest

from tests.support.combinations import GRID, TOYS, Examples
from varuna_runtime.spec.job import Precision
from varuna_runtime.spec.layout import ScheduleKind

EXAMPLES = Examples(TOYS)


@pytest.mark.parametrize("seed", range(GRID))
def test_a_drawn_combination_has_the_bits_of_the_plain_loop(seed: int) -> None:
    drawn = EXAMPLES.drawn(seed)
    assert EXAMPLES.faults(drawn) == [], drawn


@pytest.mark.parametrize("schedule", ScheduleKind)
def test_the_draws_meet_each_schedule_with_everything_else(schedule: ScheduleKind) -> None:
    drawn = [EXAMPLES.drawn(seed) for seed in range(GRID)]
    own = [d for d in drawn if d.schedule is schedule]
    assert {(len(d.stages), d.num_micro) for d in own} == {(p, m) for p in range(1, 6) for m in range(1, 7)}
    assert {d.model for d in own} == set(TOYS)
    assert {d.replicas for d in own} == {1, 2, 3}
    assert {d.precision for d in own} == set(Precision)
    assert {d.is_ragged for d in own} == {True, False}
    assert {stage.recompute for d in own for stage in d.stages} == {True, False}
    assert {d.shards for d in own} == {True, False}
