"""What is read out of the stamps of a training that was disturbed."""

import math
from pathlib import Path

import pytest

from benchmarks.recovery_stamps import (
    Stamp,
    losses,
    pauses_s,
    read,
    recovery,
    replayed,
    switch_s,
    usual_step_s,
)
from benchmarks.recovery_tally import percentile


def made(*steps: tuple[float, int, int]) -> list[Stamp]:
    return [Stamp(at_s=at_s, step=step, life=life, loss_hex="0x1p+0", world=1) for at_s, step, life in steps]


def test_the_first_step_that_nobody_had_committed_ends_a_recovery() -> None:
    seen = made((1.0, 1, 1), (2.0, 2, 1), (3.0, 3, 1), (5.0, 2, 2), (6.0, 3, 2), (7.0, 4, 2))
    found = recovery(seen, 3.5)
    assert found is not None
    assert (found.wall_s, found.resumed_s, found.lost_steps) == (3.5, 1.5, 2)


def test_a_step_that_the_old_life_commits_after_the_fault_is_no_recovery() -> None:
    seen = made((1.0, 1, 1), (2.0, 2, 1))
    assert recovery(seen, 1.5) is None
    found = recovery([*seen, *made((4.0, 3, 2))], 1.5)
    assert found is not None
    assert (found.wall_s, found.lost_steps) == (2.5, 0)


def test_replayed_steps_alone_are_no_recovery() -> None:
    assert recovery(made((1.0, 1, 1), (2.0, 2, 1), (4.0, 2, 2)), 2.5) is None


def test_steps_made_again_are_counted_after_a_moment() -> None:
    seen = made((1.0, 1, 1), (2.0, 2, 1), (3.0, 1, 2), (4.0, 2, 2), (5.0, 3, 2), (6.0, 3, 3))
    assert replayed(seen, 0.0) == 3
    assert replayed(seen, 3.5) == 2


def test_pauses_are_between_new_steps_only() -> None:
    seen = made((1.0, 1, 1), (2.0, 2, 1), (3.0, 1, 2), (4.0, 2, 2), (6.0, 3, 2), (7.0, 4, 2))
    assert pauses_s(seen, 2.5, 6.5) == [4.0]


def test_a_switch_ends_with_the_first_step_that_is_new() -> None:
    seen = made((1.0, 1, 1), (2.0, 2, 1), (3.0, 2, 2), (4.5, 3, 2), (5.0, 4, 2))
    assert switch_s(seen, 2) == 2.5


def test_replicas_that_stamp_one_step_together_count_once() -> None:
    seen = made((1.0, 1, 1), (1.01, 1, 1), (2.0, 2, 1), (2.01, 2, 1), (3.0, 3, 1))
    assert usual_step_s(seen, 1) == 1.0
    assert math.isnan(usual_step_s(seen, 2))


def test_losses_of_a_step_that_was_made_twice_are_compared() -> None:
    other = Stamp(at_s=2.0, step=1, life=2, loss_hex="0x1p+1", world=1)
    assert losses([*made((1.0, 1, 1)), other]) == {1: {"0x1p+0", "0x1p+1"}}


def test_a_line_that_is_still_being_written_is_left_out(tmp_path: Path) -> None:
    path = tmp_path / "stamps"
    assert read(path) == []
    path.write_text("2000000000 2 1 0x1p+0 4\n1000000000 1 1 0x1p+0 4\n30000")
    assert [(s.at_s, s.step, s.world) for s in read(path)] == [(1.0, 1, 4), (2.0, 2, 4)]


@pytest.mark.parametrize(("share", "wanted"), [(0.5, 2.0), (0.95, 4.0), (0.25, 1.0)])
def test_a_percentile_is_one_of_the_values(share: float, wanted: float) -> None:
    assert percentile([4.0, 1.0, 3.0, 2.0], share) == wanted
