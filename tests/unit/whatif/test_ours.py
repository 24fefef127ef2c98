"""The real core on small pools: what a change costs is what the costs say."""

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.whatif import joins, recording, scenario
from varuna_manager import traces
from varuna_manager.core.config import CoreConfig
from varuna_manager.whatif import Costs, Ours, Result, compare
from varuna_manager.whatif.ledger import Course, Doing
from varuna_manager.whatif.scenario import Scenario
from varuna_runtime.spec.job import LayoutChoice, Objective

COSTS = Costs(morph_s=2.0, warm_s=10.0, plan_s=0.0, detect_s=0.5, save_write_s=0.0)
RECORDINGS = Path(__file__).parents[2] / "data" / "traces"


def replayed(case: Scenario, costs: Costs = COSTS) -> tuple[Course, Result]:
    found = compare(case, [Ours(costs=costs)])
    return found.courses[0], found.results[0]


def doings(course: Course) -> list[tuple[float, Doing]]:
    return [(round(span.start_s, 3), span.doing) for span in course.spans]


def test_a_pool_that_stays_trains_from_the_first_start_on() -> None:
    course, result = replayed(scenario(recording(*joins(4), length_s=1000.0)))
    assert doings(course) == [(0.0, Doing.MOVING), (12.0, Doing.TRAINING)]
    assert result.goodput == pytest.approx(0.985, abs=0.004)
    assert (result.num_morphs, result.lost_steps, result.parked_s) == (0, 0, 0.0)


def test_a_loss_costs_its_detection_a_morph_and_the_steps_since_the_last_save() -> None:
    case = scenario(recording(*joins(4), "500.3,remove,n1", length_s=1000.0), save_every=10)
    course, result = replayed(case)
    assert doings(course)[2:] == [(500.3, Doing.MOVING), (502.8, Doing.TRAINING)]
    assert 0 <= result.lost_steps < 10
    assert result.num_morphs == 1
    assert course.spans[-1].num_nodes <= 3


def test_with_notice_the_work_is_handed_over_and_nothing_is_lost() -> None:
    case = scenario(recording(*joins(4), "500.3,remove,n1", length_s=1000.0), notice_s=60.0)
    course, result = replayed(case, replace(COSTS, plan_s=5.0))
    trained, moved = course.spans[1:3]
    due_s = 500.3 - 2.0 - 15.0 - 2 * trained.step_s
    assert moved.doing is Doing.MOVING
    assert due_s <= moved.start_s <= due_s + trained.step_s
    assert moved.length_s == pytest.approx(2.0), "the plan is there by then"
    assert (result.lost_steps, result.lost_s, result.num_morphs) == (0, 0.0, 1)


def test_the_longer_the_notice_the_more_is_lost_of_nothing() -> None:
    lines = (*joins(6), "300,remove,n1", "420,remove,n2", "540,remove,n3", "640,add,n7")
    goodput = [
        replayed(scenario(recording(*lines, length_s=1000.0), notice_s=notice_s))[1].goodput
        for notice_s in (0.0, 30.0, 120.0)
    ]
    assert goodput == sorted(goodput)


def test_growth_waits_for_the_launcher_and_loses_nothing() -> None:
    case = scenario(recording(*joins(2), *joins(2, at_s=500.0, first=5), length_s=1000.0))
    course, result = replayed(case)
    began_s, doing = doings(course)[2]
    assert doing is Doing.MOVING
    assert 510.0 <= began_s <= 510.0 + course.spans[1].step_s
    assert course.spans[-1].num_nodes == 4
    assert (result.lost_steps, result.num_morphs) == (0, 1)


def test_below_the_least_nodes_the_job_is_parked_and_comes_back() -> None:
    lines = (*joins(2), "300,remove,n0", "600,add,n0")
    course, result = replayed(scenario(recording(*lines, length_s=1000.0), least=2))
    assert [span.doing for span in course.spans][2:5] == [Doing.MOVING, Doing.PARKED, Doing.MOVING]
    assert result.parked_s == pytest.approx(299.5, abs=0.1)
    assert result.parked_share == 0.0  # the ideal does nothing then either
    assert course.spans[-1].doing is Doing.TRAINING


def test_a_pool_that_is_lost_whole_is_noticed_by_the_lease() -> None:
    lines = (*joins(2), "300,remove,n0", "300,remove,n1", "400,add,n9")
    course, _ = replayed(scenario(recording(*lines, length_s=600.0)))
    assert [span.doing for span in course.spans][-1] is Doing.TRAINING
    parked = next(span for span in course.spans if span.doing is Doing.PARKED)
    assert 303.0 <= parked.start_s <= 305.0


def test_a_job_that_is_done_ends_the_replay_if_asked() -> None:
    pool = recording(*joins(4), length_s=5000.0)
    course, result = replayed(scenario(pool, num_steps=100, stops_when_done=True))
    assert course.steps == 100
    assert result.finished_s == course.end_s == pytest.approx(12.0 + 100 * course.spans[-1].step_s)
    longer, _ = replayed(scenario(pool, num_steps=100))
    assert longer.finished_s == pytest.approx(course.end_s)
    assert longer.steps > 100


def test_nobody_at_all_parks_the_job_for_ever() -> None:
    course, result = replayed(scenario(recording("0,add,a", "0.001,remove,a", length_s=100.0), least=2))
    assert {span.doing for span in course.spans} == {Doing.PARKED}
    assert (result.goodput, result.samples, result.ideal_samples) == (0.0, 0, 0.0)


@pytest.mark.parametrize("name", ["aws-p3-us-east.csv", "gcp-v100-us-east1c.txt"])
@pytest.mark.parametrize("notice_s", [0.0, 120.0])
def test_every_second_of_a_recorded_pool_is_accounted_for(name: str, notice_s: float) -> None:
    whole = traces.parse((RECORDINGS / name).read_text(), source=name)
    course, result = replayed(scenario(whole.between(0, 4000.0), most=16, notice_s=notice_s))
    assert course.spans[0].start_s == 0.0
    assert all(a.end_s == b.start_s for a, b in zip(course.spans, course.spans[1:], strict=False))
    assert course.spans[-1].end_s == 4000.0
    assert 0.5 < result.goodput < 1.0
    missing = result.moving_share + result.parked_share + result.lost_share + result.slower_share
    assert result.goodput + missing == pytest.approx(1.0)


def test_equal_replays_are_equal() -> None:
    whole = traces.parse((RECORDINGS / "aws-p3-us-east.csv").read_text(), source="aws")
    case = scenario(whole.between(1800.0, 3600.0), most=12)
    assert replayed(case) == replayed(case)


def test_the_cheaper_the_morph_the_better() -> None:
    whole = traces.parse((RECORDINGS / "aws-p3-us-east.csv").read_text(), source="aws").between(0, 4000.0)
    case = scenario(whole, most=12)
    results = [replayed(case, Costs(morph_s=morph_s))[1].goodput for morph_s in (1.0, 5.0, 20.0)]
    assert results == sorted(results, reverse=True)


def test_what_is_not_durable_when_the_pool_is_gone_for_good_does_not_count() -> None:
    pool = recording(*joins(2), "300,remove,n0", "300,remove,n1", length_s=600.0)
    course, result = replayed(scenario(pool, save_every=3))
    assert course.steps % 3 == 0
    assert course.steps > 0
    trained = next(span for span in course.spans if span.doing is Doing.TRAINING)
    assert course.steps + result.lost_steps == int(trained.length_s / trained.step_s)


def test_a_plan_that_is_no_faster_is_never_worth_a_morph() -> None:
    case = scenario(recording(*joins(5), length_s=300.0))
    case = replace(case, spec=case.spec.model_copy(update={"layout": LayoutChoice(stages=2)}))
    found = compare(case, [Ours(costs=COSTS, core=CoreConfig(growth_min_gain=0.0))])
    assert found.courses[0].spans[-1].num_nodes == 4, "one of five is spare"
    assert found.results[0].num_morphs == 0


def test_a_policy_by_cost_plans_with_the_price_of_the_pool() -> None:
    case = scenario(recording(*joins(4), length_s=300.0))
    found = compare(case, [Ours(costs=COSTS), Ours(name="cheap", costs=COSTS, objective=Objective.COST)])
    fast, cheap = found.courses
    assert fast.spans[-1].num_nodes == 4
    assert cheap.spans[-1].num_nodes == 1
