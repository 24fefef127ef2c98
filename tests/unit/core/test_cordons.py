"""What a pool decides about machines: cordons, late joins, lines for the event list, hints."""

from tests.support.core_sim import Sim
from varuna_manager.core import actions as a
from varuna_manager.core import events as e
from varuna_manager.core.phases import JobPhase, NodePhase
from varuna_manager.core.words import What


def _decide(sim: Sim, node: str) -> None:
    sim.feed(e.ReleaseDecided(at_s=sim.now_s, node=node, reason="idle for 300 s"))


def _machine_gone(sim: Sim, node: str, incarnation: str = "") -> None:
    sim.feed(
        e.NodeLeft(at_s=sim.now_s, node=node, incarnation=incarnation, reason="terminated", is_machine=True)
    )


def _lines(sim: Sim, what: What) -> list[str]:
    return [x.why for x in sim.all_of(a.Announce) if isinstance(x, a.Announce) and x.what == what]


def test_an_idle_node_is_cordoned_and_told_to_leave() -> None:
    sim = Sim()
    sim.join("a")
    _decide(sim, "a")
    assert sim.node("a").phase is NodePhase.LEFT
    assert sim.state.ending == {"a": "idle for 300 s"}
    assert _lines(sim, What.NODE_CORDONED) == ["its machine is being ended: idle for 300 s"]


def test_m44_a_node_with_work_is_not_cordoned() -> None:
    sim = Sim()
    sim.join("a")
    sim.submit("j")
    _decide(sim, "a")
    assert sim.node("a").phase is NodePhase.READY
    assert not sim.state.ending
    assert sim.job("j").phase is JobPhase.RUNNING


def test_m45_a_machine_that_joins_after_its_end_was_decided_gets_no_work() -> None:
    sim = Sim()
    sim.submit("j")
    _decide(sim, "late")
    sim.join("late")
    assert sim.node("late").phase is NodePhase.LEFT
    assert not sim.all_of(a.StartRanks)
    assert sim.job("j").phase is JobPhase.PENDING


def test_a_name_that_is_used_again_after_its_machine_is_gone_is_welcome() -> None:
    sim = Sim()
    _decide(sim, "a")
    _machine_gone(sim, "a")
    assert not sim.state.ending
    sim.join("a")
    assert sim.node("a").phase is NodePhase.READY


def test_the_goodbye_of_an_agent_is_not_the_end_of_its_machine() -> None:
    sim = Sim()
    sim.join("a")
    _decide(sim, "a")
    assert "a" in sim.state.ending
    sim.join("a")
    assert sim.node("a").phase is NodePhase.LEFT


def test_a_decision_survives_a_restart_of_the_manager() -> None:
    sim = Sim()
    _decide(sim, "a")
    sim.restart()
    assert "a" in sim.state.ending


def test_what_a_pool_tells_becomes_an_event_line_and_changes_nothing() -> None:
    sim = Sim()
    before = sim.state
    sim.feed(e.Told(at_s=sim.now_s, what=What.POOL_SHORT, why="no capacity", who="pool spot"))
    assert _lines(sim, What.POOL_SHORT) == ["no capacity"]
    assert sim.state == before


def test_a_hint_is_told_and_moves_nothing() -> None:
    sim = Sim()
    sim.join("a")
    sim.submit("j")
    hint = e.NoticeHinted(at_s=sim.now_s, node="a", incarnation="a#1", source="aws", detail="rebalance")
    before = sim.state
    sim.feed(hint)
    assert _lines(sim, What.NODE_HINT) == ["rebalance"]
    assert sim.state == before


def test_a_source_of_notices_that_fails_is_shown_and_told_once() -> None:
    sim = Sim()
    sim.join("a")
    for _ in range(2):
        sim.feed(
            e.NoticesChanged(at_s=sim.now_s, node="a", incarnation="a#1", notices="unavailable, because 401")
        )
    assert sim.node("a").notices == "unavailable, because 401"
    assert _lines(sim, What.NODE_NOTICES) == ["unavailable, because 401; before: file"]


def test_m22_the_status_of_a_job_that_lost_a_spot_node_says_preempted_with_node_and_notice() -> None:
    sim = Sim()
    for name in "abc":
        sim.join(name)
    sim.submit("j")
    sim.notice("b", 20.0)
    assert sim.job("j").phase is JobPhase.RUNNING
    assert sim.job("j").reason == "PREEMPTED: leaving: b (notice from file: 20.0 s ahead)"


def test_m22_a_loss_after_a_notice_names_both() -> None:
    sim = Sim()
    for name in "ab":
        sim.join(name)
    sim.submit("j")
    sim.hold("drain")
    sim.notice("b", 30.0)
    sim.left("b", "Server.SpotInstanceTermination")
    reason = "PREEMPTED: lost b (Server.SpotInstanceTermination; notice from file: 30.0 s ahead)"
    assert sim.job("j").reason == reason
