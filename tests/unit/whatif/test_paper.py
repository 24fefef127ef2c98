"""The paper's policy: every change is a restart, P divides the blocks."""

import pytest

from tests.support.whatif import joins, recording, scenario
from varuna_manager.whatif import Costs, Paper, Result, compare
from varuna_manager.whatif.ledger import Course, Doing
from varuna_manager.whatif.paper import equal_blocks, equal_stages
from varuna_manager.whatif.plans import Plans
from varuna_manager.whatif.scenario import Scenario
from varuna_runtime.spec.layout import BatchShape

BATCH = BatchShape(batch_size=64, micro_batch_size=2, virtual_replicas=32)


def replayed(case: Scenario, costs: Costs | None = None) -> tuple[Course, Result]:
    found = compare(case, [Paper(costs=costs) if costs else Paper()])
    return found.courses[0], found.results[0]


def test_every_change_costs_a_restart_also_one_that_helps_nobody() -> None:
    lines = (*joins(4), "200,add,x", "300,remove,x", "400,remove,n0")
    course, result = replayed(scenario(recording(*lines, length_s=1000.0)))
    moving = [(s.start_s, s.end_s) for s in course.spans if s.doing is Doing.MOVING]
    assert moving == [(0.0, 12.0), (200.0, 212.0), (300.0, 312.0), (400.0, 412.0)]
    assert result.num_morphs == 3


def test_a_change_during_a_restart_begins_it_anew() -> None:
    course, _ = replayed(scenario(recording(*joins(2), "5,add,x", length_s=100.0)))
    assert [(s.doing, s.start_s, s.end_s) for s in course.spans] == [
        (Doing.MOVING, 0.0, 17.0),
        (Doing.TRAINING, 17.0, 100.0),
    ]


def test_a_loss_goes_back_to_the_last_save_and_growth_does_not() -> None:
    grown = replayed(scenario(recording(*joins(2), "100,add,x", length_s=200.0), save_every=50))[1]
    shrunk = replayed(scenario(recording(*joins(2), "100,remove,n0", length_s=200.0), save_every=50))[1]
    assert (grown.lost_steps, shrunk.lost_steps > 0) == (0, True)


@pytest.mark.parametrize("count", range(1, 9))
def test_stages_divide_the_equal_blocks(count: int) -> None:
    case = scenario(recording(*joins(1), length_s=1.0))
    assert equal_blocks(case.model) == 6
    plan = equal_stages(case, [f"n{i}" for i in range(count)], BATCH, Plans())
    assert plan is not None
    assert 6 % plan.layout.stages == 0
    assert len(plan.nodes) <= count


def test_a_restart_waits_for_launchers_that_it_does_not_open_itself() -> None:
    pool = recording(*joins(2), "100,add,x", "200,remove,x", length_s=300.0)
    course, _ = replayed(scenario(pool), Costs(morph_s=2.0, warm_s=8.0))
    began = [s.start_s for s in course.spans if s.doing is Doing.TRAINING]
    assert began == [10.0, 110.0, 202.0]
