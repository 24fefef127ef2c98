"""A pool one of whose nodes comes and goes all the time: the job must not follow each of its moves."""

from bisect import bisect_right

import pytest

from tests.support.whatif import joins, recording, scenario
from varuna_manager.core.config import CoreConfig
from varuna_manager.whatif import Costs, Ours, compare
from varuna_manager.whatif.ledger import Course, Doing

COSTS = Costs(morph_s=2.0, warm_s=0.0, plan_s=0.1, detect_s=0.3, save_write_s=0.5)
NEVER = Ours(name="never", costs=COSTS, core=CoreConfig(growth_min_gain=1.0))
STABLE, LENGTH_S = 6, 900.0


def flapping(up_s: float, down_s: float, *, is_renamed: bool) -> list[str]:
    """Return the lines of a node that comes for `up_s` and is away for `down_s`, again and again."""
    lines, at_s, number = [], 60.0, 0
    while at_s + up_s < LENGTH_S:
        name = f"x{number if is_renamed else 0}"
        lines += [f"{at_s:.3f},add,{name}", f"{at_s + up_s:.3f},remove,{name}"]
        at_s, number = at_s + up_s + down_s, number + 1
    return lines


def starts(course: Course) -> list[float]:
    """Return when a generation began to train, without the first."""
    return [span.start_s for span in course.spans if span.doing is Doing.TRAINING][1:]


def most_in_a_minute(course: Course) -> int:
    at_s = starts(course)
    return max((bisect_right(at_s, one + 60.0) - i for i, one in enumerate(at_s)), default=0)


@pytest.mark.parametrize("up_s", [3.0, 6.0, 25.0])
@pytest.mark.parametrize(("is_renamed", "most"), [(False, 4), (True, 8)])
def test_morphs_are_few_and_cost_no_more_than_they_cost(up_s: float, is_renamed: bool, most: int) -> None:
    pool = recording(*joins(STABLE), *flapping(up_s, 5.0, is_renamed=is_renamed), length_s=LENGTH_S)
    found = compare(scenario(pool), [Ours(costs=COSTS), NEVER])
    ours, never = found.results
    course = found.courses[0]
    assert most_in_a_minute(course) <= most
    morph_s = COSTS.morph_s + COSTS.plan_s + COSTS.detect_s + COSTS.save_write_s + 2 * course.spans[1].step_s
    assert ours.samples >= never.samples * (1 - ours.num_morphs * morph_s / LENGTH_S) - 64


@pytest.mark.parametrize("is_renamed", [False, True])
def test_a_node_that_never_lives_long_enough_is_followed_at_the_beginning_only(is_renamed: bool) -> None:
    pool = recording(*joins(STABLE), *flapping(6.0, 6.0, is_renamed=is_renamed), length_s=LENGTH_S)
    course = compare(scenario(pool), [Ours(costs=COSTS)]).courses[0]
    assert [at_s for at_s in starts(course) if at_s > 180.0] == []


def test_a_node_that_stays_after_all_is_used_once_it_outlived_the_others() -> None:
    lines = [line for line in flapping(6.0, 6.0, is_renamed=False) if float(line.split(",")[0]) < 400.0]
    came_s = float(lines[-1].split(",")[0]) if lines[-1].endswith("add,x0") else 420.0
    kept = lines if lines[-1].endswith("add,x0") else [*lines, f"{came_s},add,x0"]
    pool = recording(*joins(STABLE), *kept, length_s=LENGTH_S)
    course = compare(scenario(pool), [Ours(costs=COSTS)]).courses[0]
    assert course.spans[-1].num_nodes == STABLE + 1
    assert came_s < starts(course)[-1] < came_s + 20.0
