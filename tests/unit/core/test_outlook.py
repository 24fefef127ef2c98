"""What the core remembers of lost nodes, and what it expects after that."""

import pytest

from tests.support.core_sim import Sim
from varuna_manager.core import actions as a
from varuna_manager.core import events as e
from varuna_manager.core.outlook import (
    BURST_DOUBT,
    LOSSES_MAX,
    WINDOW_S,
    burst_weights,
    outlook,
    unmended_s,
)
from varuna_manager.core.step import replay
from varuna_manager.planner.outlook import PRIOR_LOSSES, PRIOR_NODE_S
from varuna_runtime.spec.job import Objective


@pytest.fixture
def sim() -> Sim:
    sim = Sim()
    for node in ("a", "b", "c"):
        sim.join(node)
    return sim


def per_node_s(sim: Sim) -> float:
    nodes = tuple(sim.state.nodes.values())
    return outlook(sim.state, None, nodes, sim.now_s).losses.per_node_s


def test_before_anything_is_seen_the_prior_counts(sim: Sim) -> None:
    assert per_node_s(sim) == pytest.approx(PRIOR_LOSSES / PRIOR_NODE_S)


def test_a_loss_and_the_time_of_all_nodes_make_the_rate(sim: Sim) -> None:
    sim.pass_time(50.0)
    sim.left("c")
    sim.pass_time(50.0)
    assert [(loss.lived_s, loss.notice_s) for loss in sim.state.losses] == [(50.0, 0.0)]
    assert per_node_s(sim) == pytest.approx((PRIOR_LOSSES + 1) / (PRIOR_NODE_S + 250.0))
    sim.now_s += WINDOW_S
    assert per_node_s(sim) == pytest.approx(PRIOR_LOSSES / (PRIOR_NODE_S + 2 * WINDOW_S)), "long ago"


def test_what_an_operator_or_a_pool_ends_is_no_loss(sim: Sim) -> None:
    sim.drain("a")
    sim.left("a")
    sim.feed(e.ReleaseDecided(at_s=sim.now_s, node="b", reason="idle"))
    sim.left("b")
    assert sim.state.losses == ()


def test_a_lease_that_ends_and_an_incarnation_that_is_superseded_are_losses(sim: Sim) -> None:
    sim.kill("a")
    sim.pass_time(5.0)
    sim.join("b")
    assert len(sim.state.losses) == 2


def test_notices_that_came_before_losses_are_expected_again(sim: Sim) -> None:
    sim.notice("a", 30.0)
    sim.pass_time(10.0)
    sim.left("a")
    assert outlook(sim.state, None, (sim.node("b"),), sim.now_s).notice_s == 30.0


def test_pools_are_told_apart(sim: Sim) -> None:
    for node, pool in (("a", "spot"), ("b", "fixed"), ("c", "spot")):
        place = e.Place(node=node, domain=f"{pool}-1")
        sim.feed(e.NodesPlaced(at_s=sim.now_s, pool=pool, places=(place,), price_per_hour=0.5))
    sim.pass_time(100.0)
    sim.left("a")
    spot = outlook(sim.state, None, (sim.node("c"),), sim.now_s).losses.per_node_s
    fixed = outlook(sim.state, None, (sim.node("b"),), sim.now_s).losses.per_node_s
    both = outlook(sim.state, None, (sim.node("b"), sim.node("c")), sim.now_s).losses.per_node_s
    assert spot > PRIOR_LOSSES / PRIOR_NODE_S > fixed
    assert both == pytest.approx((spot + fixed) / 2)


def test_losses_within_seconds_are_one_moment() -> None:
    assert burst_weights([]) == (1.0,)
    assert burst_weights([10.0, 12.0, 15.0, 15.1, 40.0]) == (3.0, 0.0, 1.0)


def test_the_record_is_bounded_and_a_replay_gives_it_again(sim: Sim) -> None:
    for _ in range(LOSSES_MAX + 5):
        sim.now_s += 1.0
        sim.join("a")
    assert len(sim.state.losses) == LOSSES_MAX
    assert replay(sim.journal, sim.config).losses == sim.state.losses


def test_the_planner_is_told_what_is_expected_where_the_job_asks_for_progress(sim: Sim) -> None:
    sim.submit("j", objective=Objective.PROGRESS)
    sim.submit("k")
    asked = {action.job: action.request for action in sim.actions if isinstance(action, a.MakePlan)}
    assert asked["j"].outlook is not None
    sim.cancel("j")
    asked = {action.job: action.request for action in sim.actions if isinstance(action, a.MakePlan)}
    assert asked["k"].outlook is None


def test_the_planner_is_told_where_nodes_are_and_what_they_cost(sim: Sim) -> None:
    places = (e.Place(node="a", domain="zone-1"), e.Place(node="gone", domain="zone-1"))
    sim.feed(e.NodesPlaced(at_s=sim.now_s, pool="spot", places=places, price_per_hour=0.25))
    sim.submit("j")
    (asked,) = {
        action.job: action.request for action in sim.actions if isinstance(action, a.MakePlan)
    }.values()
    known = {node.node: (node.domain, node.price_per_hour) for node in asked.nodes}
    assert known == {"a": ("zone-1", 0.25), "b": ("", None), "c": ("", None)}


def test_a_job_by_cost_that_waits_for_prices_is_asked_again_once_they_are_known(sim: Sim) -> None:
    before = sim.state.pool_version
    place = e.Place(node="a", domain="")
    sim.feed(e.NodesPlaced(at_s=sim.now_s, pool="spot", places=(place,), price_per_hour=0.25))
    known = sim.state.pool_version
    sim.feed(e.NodesPlaced(at_s=sim.now_s, pool="spot", places=(place,), price_per_hour=0.5))
    assert (known, sim.state.pool_version) == (before + 1, before + 1)


def test_what_copies_on_two_nodes_do_not_mend_are_losses_of_two_at_once(sim: Sim) -> None:
    def expected_s(num_holders: int) -> float:
        return unmended_s(sim.state, tuple(sim.state.nodes.values()), num_holders, sim.now_s)

    any_s = expected_s(0)
    assert any_s == pytest.approx(1 / (3 * per_node_s(sim)))
    assert expected_s(1) == any_s, "one holder dies with its node"
    assert expected_s(2) == pytest.approx(any_s * (1 + BURST_DOUBT) / BURST_DOUBT), "never seen"
    sim.left("a")
    sim.left("b")
    assert expected_s(2) < any_s
    assert expected_s(3) > expected_s(2) > expected_s(1)


def test_a_generation_is_told_how_often_its_copies_will_not_do() -> None:
    told: list[float] = []
    for has_vaults in (False, True):
        sim = Sim()
        sim.has_vaults = has_vaults
        for node in ("a", "b", "c"):
            sim.join(node)
        sim.submit("j")
        starts = [x for x in sim.actions if isinstance(x, a.StartRanks)]
        told.append(starts[-1].unmended_s)
    without, with_copies = told
    assert without > 0
    assert with_copies > 5 * without
