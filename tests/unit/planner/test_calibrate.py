"""Calibration by a few measured steps: what it finds, and that it agrees with the simulator."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from varuna_manager.planner.calibrate import (
    Costs,
    MeasuredStep,
    Training,
    calibrated,
    closed_form_s,
    corners,
    pipeline_of,
    predicted_s,
)
from varuna_manager.planner.simulate import simulate
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.layout import Layout

TRAINING = Training(batch_size=1024, micro_batch_size=8)
COSTS = Costs(compute_s=0.15, exchange_s=0.04, reduction_s=0.9)
LAYOUTS = [Layout(stages=p, replicas=d) for d in (1, 2, 3, 5, 16) for p in (1, 2, 5, 16)]


def measured(costs: Costs, layouts: list[Layout], training: Training = TRAINING) -> list[MeasuredStep]:
    return [MeasuredStep(layout=one, step_s=closed_form_s(training, costs, one)) for one in layouts]


@pytest.mark.parametrize("num_segments", [None, 24, 25])
def test_three_rows_give_back_the_costs_that_made_them(num_segments: int | None) -> None:
    training = Training(batch_size=1024, micro_batch_size=8, num_segments=num_segments)
    found = calibrated(training, corners(measured(COSTS, LAYOUTS, training)))
    assert found.compute_s == pytest.approx(COSTS.compute_s)
    assert found.exchange_s == pytest.approx(COSTS.exchange_s)
    assert found.reduction_s == pytest.approx(COSTS.reduction_s)
    assert found.fixed_s == 0.0


def test_more_rows_tell_the_fixed_cost_too() -> None:
    costs = Costs(compute_s=0.15, exchange_s=0.04, reduction_s=0.9, fixed_s=0.5)
    found = calibrated(TRAINING, measured(costs, LAYOUTS))
    assert found.fixed_s == pytest.approx(0.5)
    assert found.compute_s == pytest.approx(0.15)


def test_one_row_tells_the_compute_alone() -> None:
    row = MeasuredStep(layout=Layout(stages=1, replicas=1), step_s=12.8)
    assert calibrated(TRAINING, [row]) == Costs(compute_s=pytest.approx(0.1))


def test_rows_of_one_replica_tell_nothing_of_the_reduction() -> None:
    rows = measured(COSTS, [Layout(stages=p, replicas=1) for p in (2, 4, 16)])
    found = calibrated(TRAINING, rows)
    assert found.reduction_s == 0.0
    assert found.exchange_s == pytest.approx(COSTS.exchange_s)


def test_no_cost_is_negative_where_the_rows_would_ask_for_it() -> None:
    layouts = [Layout(stages=p, replicas=1) for p in (1, 2, 16)]
    rows = [MeasuredStep(layout=one, step_s=8.0 / one.stages**2) for one in layouts]
    found = calibrated(TRAINING, rows)
    assert found.compute_s > 0
    assert min(found.exchange_s, found.reduction_s, found.fixed_s) == 0.0


def test_rows_that_are_half_and_twice_as_slow_count_alike() -> None:
    layout = Layout(stages=1, replicas=1)
    rows = [MeasuredStep(layout=layout, step_s=s) for s in (6.4, 25.6)]
    assert calibrated(TRAINING, rows).compute_s == pytest.approx(0.1)


def test_calibration_needs_a_row() -> None:
    with pytest.raises(InvalidInput, match="at least one"):
        calibrated(TRAINING, [])


def test_corners_are_the_shallowest_the_deepest_and_the_widest_whatever_they_took() -> None:
    chosen = corners(measured(COSTS, LAYOUTS))
    assert [row.layout for row in chosen] == [
        Layout(stages=1, replicas=1),
        Layout(stages=16, replicas=1),
        Layout(stages=1, replicas=16),
    ]
    slower = [MeasuredStep(layout=row.layout, step_s=2 * row.step_s) for row in measured(COSTS, LAYOUTS)]
    assert [row.layout for row in corners(reversed(slower))] == [row.layout for row in chosen]


def test_one_layout_is_one_corner() -> None:
    rows = measured(COSTS, [Layout(stages=4, replicas=2)])
    assert corners(rows) == tuple(rows)
    assert corners([]) == ()


@settings(max_examples=60, deadline=None)
@given(
    stages=st.integers(1, 9),
    replicas=st.integers(1, 4),
    num_micro=st.integers(1, 40),
    exchange_s=st.floats(0, 0.5),
    reduction_s=st.floats(0, 5),
)
def test_the_closed_form_is_what_the_simulator_says_of_equal_stages(
    stages: int, replicas: int, num_micro: int, exchange_s: float, reduction_s: float
) -> None:
    training = Training(batch_size=num_micro * replicas, micro_batch_size=1)
    costs = Costs(compute_s=1.0, exchange_s=exchange_s, reduction_s=reduction_s, fixed_s=0.25)
    layout = Layout(stages=stages, replicas=replicas)
    simulated_s = simulate(pipeline_of(training, costs, layout, num_micro=num_micro)).step_s
    assert simulated_s == pytest.approx(closed_form_s(training, costs, layout))


@pytest.mark.parametrize(("num_segments", "stages"), [(49, 6), (49, 24), (50, 25), (24, 7)])
def test_with_uneven_stages_the_closed_form_is_near(num_segments: int, stages: int) -> None:
    training = Training(batch_size=128, micro_batch_size=1, num_segments=num_segments)
    layout = Layout(stages=stages, replicas=1)
    assert predicted_s(training, COSTS, layout) == pytest.approx(
        closed_form_s(training, COSTS, layout), rel=0.02
    )


def test_a_share_between_two_micro_batches_is_predicted_between_them() -> None:
    layout = Layout(stages=2, replicas=3)
    training = Training(batch_size=25, micro_batch_size=2)  # 4 1/6 micro-batches a replica
    fewer, more = (simulate(pipeline_of(training, COSTS, layout, num_micro=n)).step_s for n in (4, 5))
    assert predicted_s(training, COSTS, layout) == pytest.approx(fewer + (more - fewer) / 6)
