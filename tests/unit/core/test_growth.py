"""When a job moves to a larger pool, by what was seen of nodes before."""

from dataclasses import replace

import pytest

from tests.support.core_records import BATCH, plan_for
from tests.support.core_sim import Sim
from varuna_manager.core import growth, policy
from varuna_manager.core.state import Loss
from varuna_runtime.spec.layout import Plan

MEMBERS = ("a", "b", "c", "d")


@pytest.fixture
def sim() -> Sim:
    sim = Sim()
    for node in MEMBERS:
        sim.join(node)
    sim.submit("j")
    sim.pass_time(100.0)
    return sim


def wait_s(
    sim: Sim, *lives_s: float, node: str = "other", age_s: float = 0.0, morph_s: float = 2.0
) -> float | None:
    """Return how long the fifth node is waited with, a quarter faster, after losses of such lives."""
    run = sim.job("j").run
    assert run is not None
    larger = plan_for([(name, 1) for name in (*MEMBERS, "new")], BATCH)
    assert isinstance(larger, Plan)
    new = replace(sim.node("a"), node="new", joined_s=sim.now_s - age_s)
    lost = [
        Loss(at_s=sim.now_s - 10.0 * i, node=node, pool="", lived_s=life_s, notice_s=0.0)
        for i, life_s in reversed(list(enumerate(lives_s)))
    ]
    state = replace(sim.state, nodes={**sim.state.nodes, "new": new}, losses=tuple(lost))
    return growth.best_wait_s(state, replace(sim.job("j"), morph_s=morph_s), run, larger, sim.now_s)


def test_a_node_of_a_calm_pool_is_used_at_once(sim: Sim) -> None:
    assert wait_s(sim) == 0.0


def test_one_short_life_is_no_reason_to_wait_and_many_are(sim: Sim) -> None:
    assert wait_s(sim, 5.0) == 0.0
    assert wait_s(sim, 5.0, 5.0, 5.0) == 5.0


def test_of_a_node_that_was_lost_before_its_own_lives_count(sim: Sim) -> None:
    assert wait_s(sim, 5.0, node="new") == 5.0


def test_a_node_that_outlived_the_others_is_used(sim: Sim) -> None:
    assert wait_s(sim, *[5.0] * 9, age_s=4.0) == 1.0
    assert wait_s(sim, *[5.0] * 9, age_s=5.0) == 0.0


def test_long_lives_are_not_waited_for(sim: Sim) -> None:
    assert wait_s(sim, *[400.0] * 9) == 0.0


def test_a_morph_that_costs_more_than_is_gained_until_the_next_loss_is_not_made(sim: Sim) -> None:
    assert wait_s(sim, morph_s=300.0) == 0.0
    assert wait_s(sim, morph_s=500.0) is None
    assert wait_s(sim, *[100.0] * 50, morph_s=300.0) is None, "losses are frequent"


def test_a_larger_pool_that_is_not_worth_it_is_judged_again_later(sim: Sim) -> None:
    slow = replace(sim.job("j"), morph_s=1e6)
    sim.state = replace(sim.state, jobs={"j": slow})
    sim.join("e")
    assert len(sim.job("j").plan.nodes) == 4  # type: ignore[union-attr]
    assert sim.job("j").deadline_s == sim.now_s + sim.config.growth_retry_s
    sim.state = replace(sim.state, jobs={"j": replace(sim.job("j"), morph_s=1.0)})
    sim.pass_time(sim.config.growth_retry_s + 1.0)
    assert len(sim.job("j").plan.nodes) == 5  # type: ignore[union-attr]


def test_more_nodes_are_judged_although_others_are_waited_with(sim: Sim) -> None:
    sim.state = replace(sim.state, jobs={"j": replace(sim.job("j"), morph_s=1e6)})
    sim.join("e")
    first = sim.job("j").offered
    sim.join("f")
    assert sim.job("j").offered == first | {"f"}


def test_the_pause_of_a_morph_is_measured_from_the_halt_to_the_first_step(sim: Sim) -> None:
    assert sim.job("j").morph_s is None, "the first start is none"
    sim.hold("prepare")
    sim.left("d")
    sim.pass_time(3.0)
    sim.release("prepare")
    assert sim.job("j").morph_s == 3.0
    sim.hold("prepare")
    sim.left("c")
    sim.pass_time(1.0)
    sim.release("prepare")
    assert sim.job("j").morph_s == 2.0, "older ones count by half"


def test_a_back_off_and_a_parked_job_are_no_part_of_a_morph(sim: Sim) -> None:
    job = replace(sim.job("j"), halted_s=sim.now_s - 50.0, morph_s=2.0)
    assert policy.smoothed_morph_s(replace(job, fruitless=2), sim.now_s) == 2.0
    for node in MEMBERS:
        sim.left(node)
    assert sim.job("j").phase == "PARKED"
    assert sim.job("j").halted_s is None
