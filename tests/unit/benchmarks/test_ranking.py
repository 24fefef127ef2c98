import pytest

from benchmarks.ranking import Predicted, kendall_tau, max_error, mean_error, median_error, regret, regrets
from varuna_runtime.spec.layout import Layout


def row(stages: int, replicas: int, predicted_s: float, measured_s: float) -> Predicted:
    return Predicted(
        layout=Layout(stages=stages, replicas=replicas), predicted_s=predicted_s, measured_s=measured_s
    )


ROWS = [row(2, 1, 8.0, 10.0), row(4, 1, 6.0, 5.0), row(2, 2, 5.0, 5.5), row(4, 2, 7.0, 7.0)]


def test_errors_are_relative_to_what_was_measured() -> None:
    assert [round(one.error, 3) for one in ROWS] == [-0.2, 0.2, -0.091, 0.0]
    assert mean_error(ROWS) == pytest.approx((0.2 + 0.2 + 1 / 11) / 4)
    assert median_error(ROWS) == pytest.approx((0.2 + 1 / 11) / 2)
    assert max_error(ROWS) == pytest.approx(0.2)


def test_tau_counts_pairs_in_the_right_order_less_those_in_the_wrong_one() -> None:
    assert kendall_tau(ROWS) == pytest.approx((5 - 1) / 6)
    assert kendall_tau(ROWS[:1]) == 1.0
    assert kendall_tau([row(1, 1, 1.0, 1.0), row(2, 1, 1.0, 2.0)]) == 0.0


def test_regret_is_that_of_the_layouts_the_nodes_suffice_for() -> None:
    assert regret(ROWS, 1) is None
    assert regret(ROWS, 2).share == 0.0  # type: ignore[union-attr]
    at_four = regret(ROWS, 4)
    assert at_four is not None
    assert at_four.chosen == Layout(stages=2, replicas=2)
    assert at_four.best == Layout(stages=4, replicas=1)
    assert at_four.share == pytest.approx(0.1)


def test_regrets_begin_where_something_can_run_and_leave_nodes_idle() -> None:
    found = regrets(ROWS)
    assert [one.num_nodes for one in found] == [2, 3, 4, 5, 6, 7, 8]
    assert {one.chosen for one in found[2:]} == {Layout(stages=2, replicas=2)}


def test_equal_predictions_go_to_fewer_nodes() -> None:
    found = regret([row(4, 2, 1.0, 1.0), row(4, 1, 1.0, 2.0)], 8)
    assert found is not None
    assert found.chosen == Layout(stages=4, replicas=1)
