import math

import pytest

from varuna_runtime.checkpoint.pacing import LONGEST_S, SHORTEST_S, SaveCost, interval_s


def test_the_interval_is_that_of_young_and_daly() -> None:
    assert interval_s(cost_s=0.5, elapsed_s=1.0, mtbf_s=900.0) == pytest.approx(30.0)


def test_the_best_interval_costs_less_than_its_neighbours() -> None:
    def lost(every_s: float) -> float:
        return 0.2 / every_s + every_s / 2 / 1800.0

    best_s = interval_s(cost_s=0.2, elapsed_s=0.0, mtbf_s=1800.0)
    assert lost(best_s) < min(lost(0.9 * best_s), lost(1.1 * best_s))


def test_cheap_saves_are_not_made_all_the_time() -> None:
    assert interval_s(cost_s=0.0, elapsed_s=0.1) == SHORTEST_S
    assert interval_s(cost_s=-0.5, elapsed_s=0.1) == SHORTEST_S


def test_nothing_becomes_too_old_for_the_sake_of_cost() -> None:
    assert interval_s(cost_s=100.0, elapsed_s=10.0, mtbf_s=1e6) == LONGEST_S


def test_saves_never_overlap_however_slow_the_store() -> None:
    assert interval_s(cost_s=0.0, elapsed_s=1000.0) > 1000.0


def test_losses_make_saves_frequent() -> None:
    rare, often = (interval_s(cost_s=1.0, elapsed_s=0.0, mtbf_s=mtbf) for mtbf in (4000.0, 1000.0))
    assert rare == pytest.approx(2 * often)


def test_a_save_costs_its_stall_and_what_it_slows() -> None:
    cost = SaveCost()
    for _ in range(5):
        cost.step(1.0, is_saving=False)
    cost.stalled(0.25)
    cost.step(1.5, is_saving=True)
    cost.step(1.25, is_saving=True)
    assert cost.end() == pytest.approx(1.0)
    assert cost.end() == 0.0


def test_an_evaluation_beside_a_save_is_not_its_cost() -> None:
    cost = SaveCost()
    cost.step(1.0, is_saving=False)
    cost.step(100.0, is_saving=True)
    assert cost.end() == 0.0


def test_faster_steps_do_not_pay_for_a_stall() -> None:
    cost = SaveCost()
    cost.step(1.0, is_saving=False)
    cost.stalled(0.5)
    cost.step(0.25, is_saving=True)
    assert math.isclose(cost.end(), 0.5)
