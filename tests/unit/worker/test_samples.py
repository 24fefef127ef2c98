import pytest

from varuna_runtime.worker.samples import (
    ENOUGH,
    FEWEST,
    MOST,
    is_settled,
    quantile,
    quantiles,
    spread,
    typical,
)


def test_the_spread_is_between_the_quartiles_so_that_one_outlier_is_none() -> None:
    assert spread([1.0] * 9 + [100.0]) == 0.0
    assert spread([1.0, 2.0, 3.0, 4.0, 5.0]) == pytest.approx(2 / 3)
    assert spread([0.0, 0.0]) == 0.0


def test_steady_times_settle_soon_and_others_go_on_up_to_a_limit() -> None:
    assert not is_settled([[1.0] * (ENOUGH - 1)], is_late=False)
    assert is_settled([[1.0] * ENOUGH], is_late=False)
    unsteady = [1.0, 2.0] * MOST
    assert not is_settled([[1.0] * ENOUGH, unsteady[:ENOUGH]], is_late=False)
    assert is_settled([unsteady[:MOST]], is_late=False)


def test_without_time_left_the_fewest_are_enough() -> None:
    assert not is_settled([[1.0] * (FEWEST - 1)], is_late=True)
    assert is_settled([[1.0, 9.0, 4.0][:FEWEST]], is_late=True)


def test_quantiles_are_interpolated_ascending_and_trimmed() -> None:
    assert quantile([3.0, 1.0], 0.25) == 1.5
    found = quantiles([float(value) for value in range(1000)] + [1e9])
    assert list(found) == sorted(found)
    assert found[10] == 500.0
    assert found[-1] < 1000
    assert quantiles([1.0, 2.0]) == ()


def test_of_two_timings_the_lower_one_is_typical() -> None:
    assert typical([9.0, 1.0]) == 1.0
    assert typical([9.0, 1.0, 2.0]) == 2.0
