"""What a campaign measured."""

from tests.support.chaos.checker import Told
from tests.support.chaos.figures import figures, together


def told(step: int, generation: int, at_s: float) -> Told:
    return Told(step=step, generation=generation, loss_hex="", at_s=at_s, step_s=1.0)


def test_an_outage_lasts_from_the_last_new_step_to_the_next_of_a_later_generation() -> None:
    found = figures([told(0, 1, 1.0), told(1, 1, 2.0), told(1, 2, 5.0), told(2, 2, 6.0), told(3, 2, 7.0)])
    assert found.outages_s == (4.0,)


def test_steps_that_are_done_again_are_not_useful() -> None:
    found = figures([told(0, 1, 1.0), told(1, 1, 2.0), told(0, 2, 4.0), told(1, 2, 5.0), told(2, 2, 6.0)])
    assert (found.useful_s, found.wall_s) == (3.0, 6.0)
    assert found.goodput == 0.5


def test_jobs_are_added_up() -> None:
    one = figures([told(0, 1, 1.0), told(1, 2, 4.0)])
    assert together([one, one]).outages_s == (3.0, 3.0)
    assert together([one, one]).wall_s == 2 * one.wall_s
