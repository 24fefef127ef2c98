"""Which nodes are told to have a launcher ready, and what is made of their answers."""

import pytest

from tests.support.core_sim import Sim
from varuna_manager.core import actions as a
from varuna_manager.core import events as e
from varuna_manager.core.views import node_views


def _told(sim: Sim) -> list[str]:
    return [action.incarnation for action in sim.all_of(a.WarmNode) if isinstance(action, a.WarmNode)]


def _running(sim: Sim, *nodes: str, **spec: object) -> Sim:
    for node in nodes:
        sim.join(node)
    sim.submit("j", **spec)
    assert sim.job("j").phase == "RUNNING"
    sim.actions.clear()
    return sim


@pytest.fixture
def sim() -> Sim:
    return Sim()


def _members(sim: Sim) -> list[str]:
    run = sim.job("j").run
    assert run is not None
    return sorted(run.members)


def test_no_more_nodes_are_told_than_the_job_may_have(sim: Sim) -> None:
    _running(sim, "a", max=3)
    sim.hold("warm")
    for node in "bcde":
        sim.join(node)
    assert _told(sim) == ["b#1", "c#1"]


def test_a_node_that_failed_leaves_its_place_to_another(sim: Sim) -> None:
    _running(sim, "a", max=2)
    sim.join("b", can_warm=False)
    sim.join("c")
    assert _told(sim) == ["b#1", "c#1"]
    sim.pass_time(6.0)
    assert _members(sim) == ["a", "c"]


def test_newcomers_share_the_deadline_of_the_first_so_that_growth_is_not_put_off_for_ever(sim: Sim) -> None:
    _running(sim, "a")
    sim.join("b")
    sim.hold("warm")
    for node in "cdefgh":
        sim.join(node)
        sim.pass_time(4.0)
    assert _members(sim) == ["a", "b"]


def test_a_word_of_an_older_incarnation_does_not_count(sim: Sim) -> None:
    _running(sim, "a")
    sim.hold("warm")
    sim.join("b")
    sim.join("b")
    sim.feed(e.NodeWarmed(at_s=sim.now_s, job="j", node="b", incarnation="b#1", ok=True, reason=""))
    sim.pass_time(11.0)
    assert _members(sim) == ["a"]
    sim.release("warm")
    sim.pass_time(6.0)
    assert _members(sim) == ["a", "b"]


def test_a_spare_whose_launcher_dies_is_not_grown_onto(sim: Sim) -> None:
    _running(sim, "a", max=2)
    sim.join("b")
    sim.feed(e.NodeWarmed(at_s=sim.now_s, job="j", node="b", incarnation="b#1", ok=False, reason="killed"))
    sim.pass_time(20.0)
    assert _members(sim) == ["a"]
    view = next(view for view in node_views(sim.state, sim.now_s) if view.node == "b")
    assert view.reason == "spare: cannot open the launcher of job j: killed"


def test_a_job_that_is_over_forgets_its_launchers_on_spares_too(sim: Sim) -> None:
    _running(sim, "a", max=2)
    sim.join("b")
    sim.finish("j")
    assert [x.incarnation for x in sim.all_of(a.ForgetJob) if isinstance(x, a.ForgetJob)] == ["a#1", "b#1"]
    assert sim.job("j").launchers == {}
    sim.feed(e.NodeWarmed(at_s=sim.now_s, job="j", node="b", incarnation="b#1", ok=True, reason=""))
    assert sim.job("j").launchers == {}
