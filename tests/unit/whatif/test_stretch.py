"""Steps and saves over time, in closed form."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varuna_manager.whatif.stretch import Stretch

PLAIN = Stretch(start_s=100.0, step=7, step_s=2.0, saved_every=3, stall_s=1.0, write_s=4.0)


@pytest.mark.parametrize(
    ("at_s", "committed"), [(100, 7), (101.9, 7), (102, 8), (106, 10), (106.9, 10), (108.9, 10), (109, 11)]
)
def test_a_step_ends_every_step_time_and_a_save_stands_in_between(at_s: float, committed: int) -> None:
    assert PLAIN.committed(at_s) == committed


@pytest.mark.parametrize(("at_s", "durable"), [(100, 7), (110.9, 7), (111, 10), (117.9, 10), (118, 13)])
def test_a_save_is_durable_once_it_is_written(at_s: float, durable: int) -> None:
    assert PLAIN.durable(at_s) == durable


@pytest.mark.parametrize(("at_s", "stops_s"), [(100.5, 102), (105, 106), (106.5, 106.5), (107.5, 109)])
def test_it_can_stop_when_the_running_step_ends_and_at_once_between_two(at_s: float, stops_s: float) -> None:
    assert PLAIN.boundary(at_s) == stops_s


STRETCHES = st.builds(
    Stretch,
    start_s=st.floats(0, 1e5),
    step=st.integers(0, 1000),
    step_s=st.floats(0.01, 100),
    saved_every=st.integers(1, 50),
    stall_s=st.floats(0, 10),
    write_s=st.floats(0, 10),
)


@given(STRETCHES, st.integers(0, 2000))
def test_a_step_is_committed_when_it_is_reached_and_not_before(stretch: Stretch, steps: int) -> None:
    step = stretch.step + steps
    at_s = stretch.reaches(step)
    assert stretch.committed(at_s + 1e-3 * stretch.step_s) == step
    if steps:
        assert stretch.committed(at_s - 1e-3 * stretch.step_s) == step - 1


@given(STRETCHES, st.floats(0, 1e4))
def test_what_is_durable_is_committed_and_a_step_ends_in_time(stretch: Stretch, in_s: float) -> None:
    at_s = stretch.start_s + in_s
    assert stretch.step <= stretch.durable(at_s) <= stretch.committed(at_s)
    assert at_s <= stretch.boundary(at_s) <= at_s + stretch.step_s * (1 + 1e-6)
    assert 0 <= stretch.begun_s(at_s) <= stretch.step_s
