"""Whatever a pool does: the core keeps its rules, and every second and step is accounted for."""

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.whatif import scenario
from varuna_manager.traces import Change, Recording
from varuna_manager.whatif import Costs, Ours, Paper, compare

NODES = [f"n{i}" for i in range(6)]


@st.composite
def recordings(draw: st.DrawFn) -> Recording:
    present: set[str] = set()
    at_s, changes = 0.0, []
    for _ in range(draw(st.integers(1, 12))):
        toggled = set(draw(st.lists(st.sampled_from(NODES), min_size=1, max_size=4, unique=True)))
        joined, left = sorted(toggled - present), sorted(toggled & present)
        changes.append(Change(at_s=at_s, joined=tuple(joined), left=tuple(left)))
        present ^= toggled
        at_s += draw(st.sampled_from([0.25, 1.0, 2.5, 3.0, 10.0, 45.0]))
    return Recording(changes=tuple(changes), length_s=at_s + 30.0)


@settings(max_examples=60, deadline=None)
@given(recordings(), st.sampled_from([0.0, 2.0, 20.0]), st.integers(1, 3), st.sampled_from([0.5, 4.0]))
def test_a_pool_that_flaps_is_accounted_for(
    pool: Recording, notice_s: float, least: int, morph_s: float
) -> None:
    case = scenario(pool, most=5, least=least, notice_s=notice_s)
    compared = compare(case, [Ours(costs=Costs(morph_s=morph_s)), Paper()])
    for course, result in zip(compared.courses, compared.results, strict=True):
        assert sum(span.length_s for span in course.spans) == pytest.approx(pool.length_s)
        trained = sum(int(s.length_s / s.step_s + 1e-6) for s in course.spans if s.step_s > 0)
        assert course.steps + course.lost_steps == trained
        assert 0 <= result.goodput <= 1 + 1e-9
        missing = result.moving_share + result.parked_share + result.lost_share + result.slower_share
        if result.ideal_samples:
            assert result.goodput + missing == pytest.approx(1.0)


@settings(max_examples=30, deadline=None)
@given(recordings(), st.sampled_from([120.0, 200.0]), st.sampled_from([0.5, 4.0]))
def test_no_step_is_lost_where_every_end_is_announced_long_enough_before(
    pool: Recording, notice_s: float, write_s: float
) -> None:
    """A step of one node takes 29 s, so a drain may need up to 110 s; some nodes live longer than that."""
    slowly = tuple(replace(change, at_s=10 * change.at_s) for change in pool.changes)
    calm = Recording(changes=slowly, length_s=10 * pool.length_s)
    costs = Costs(save_stall_s=0.2, save_write_s=write_s)
    course = compare(scenario(calm, most=5, notice_s=notice_s), [Ours(costs=costs)]).courses[0]
    assert (course.lost_steps, course.begun_steps) == (0, 0.0)


@settings(max_examples=20, deadline=None)
@given(recordings())
def test_a_pool_that_calms_down_is_used_in_the_end(pool: Recording) -> None:
    calm = Recording(changes=pool.changes, length_s=pool.length_s + 120.0)
    compared = compare(scenario(calm, most=5), [Ours()])
    last, best = compared.courses[0].spans[-1], compared.best[-1]
    assert (last.step_s > 0) == (best.samples_per_s > 0)
    if last.step_s:
        assert 64 / last.step_s >= 0.95 * best.samples_per_s
