from tests.support.core_sim import Sim
from varuna_manager.core import actions as a
from varuna_manager.core import events as e
from varuna_manager.core.config import CoreConfig
from varuna_manager.core.phases import JobPhase, NodePhase
from varuna_runtime.spec.generation import GenerationKind


def _running(*nodes: str) -> Sim:
    sim = Sim()
    for node in nodes:
        sim.join(node)
    sim.submit("j")
    assert sim.job("j").phase is JobPhase.RUNNING
    return sim


def test_the_pool_version_grows_only_when_the_plannable_set_changes() -> None:
    sim = Sim()
    sim.join("a")
    version = sim.state.pool_version
    sim.pass_time(2.0)
    sim.submit("j")
    assert sim.state.pool_version == version
    sim.disconnect("a")
    sim.rejoin("a")
    assert sim.state.pool_version == version + 2


def test_a_manager_that_stood_still_does_not_hold_it_against_the_nodes() -> None:
    sim = _running("a", "b")
    sim.pass_time(1.0)
    sim.now_s += 30.0
    sim.feed(e.Ticked(at_s=sim.now_s))
    sim.pass_time(5.0)
    assert sim.node("a").phase is NodePhase.READY
    assert sim.job("j").generation == 2


def test_a_beat_of_an_older_incarnation_keeps_nobody_alive() -> None:
    sim = _running("a")
    sim.freeze("a")
    for _ in range(10):
        sim.now_s += 0.5
        sim.feed(e.BeatSeen(at_s=sim.now_s, node="a", incarnation="older", running=()))
        sim.feed(e.Ticked(at_s=sim.now_s))
    assert sim.node("a").phase is NodePhase.LOST


def test_a_deadline_that_was_moved_since_is_void() -> None:
    sim = _running("a", "b")
    sim.pass_time(2.0)
    sim.disconnect("b")
    sim.rejoin("b")
    sim.feed(e.DeadlinePassed(at_s=sim.now_s, subject="node:b", deadline_s=sim.now_s))
    sim.feed(e.DeadlinePassed(at_s=sim.now_s, subject="job:j", deadline_s=sim.now_s))
    assert sim.node("b").phase is NodePhase.READY
    assert sim.job("j").phase is JobPhase.RUNNING


def test_a_threshold_is_raised_once() -> None:
    sim = _running("a")
    late = e.Ticked(at_s=sim.now_s)
    sim.freeze("a")
    sim.pass_time(2.5)
    count = len(sim.all_of(a.RaiseDurable))
    sim.feed(late)
    sim.pass_time(5.0)
    assert len(sim.all_of(a.RaiseDurable)) == count + 1


def test_what_a_returning_agent_runs_of_other_generations_is_ended() -> None:
    sim = _running("a", "b")
    sim.disconnect("b")
    sim.agents["b"].running["j", 1] = (0,)
    sim.agents["b"].running["unknown", 4] = (0,)
    sim.rejoin("b")
    aborted = [(x.job, x.generation) for x in sim.all_of(a.AbortRanks)[-2:] if isinstance(x, a.AbortRanks)]
    assert aborted == [("j", 1), ("unknown", 4)]
    assert sim.job("j").phase is JobPhase.RUNNING


def test_an_incarnation_that_left_is_fenced_when_it_says_hello_again() -> None:
    sim = _running("a", "b")
    sim.left("b")
    sim.agents["b"].is_alive = True
    sim.agents["b"].is_connected = False
    sim.rejoin("b")
    assert [x.incarnation for x in sim.all_of(a.FenceNode) if isinstance(x, a.FenceNode)] == ["b#1"]


def test_a_drain_asked_for_while_the_node_is_away_happens_when_it_is_back() -> None:
    sim = Sim()
    sim.join("a")
    sim.disconnect("a")
    sim.drain("a")
    assert sim.node("a").phase is NodePhase.DISCONNECTED
    sim.rejoin("a")
    assert sim.node("a").phase is NodePhase.LEFT


def test_a_nearer_notice_shortens_a_drain_under_way() -> None:
    sim = _running("a", "b", "c")
    sim.hold("drain")
    sim.drain("a")
    sim.notice("b", 10.0)
    last = [x for x in sim.all_of(a.DrainRanks) if isinstance(x, a.DrainRanks)][-3:]
    assert {(x.node, x.within_s) for x in last} == {("a", 8.0), ("b", 8.0), ("c", 8.0)}


def test_a_repeated_notice_says_nothing_new() -> None:
    sim = _running("a", "b")
    sim.hold("drain")
    sim.notice("b", 10.0)
    count = len(sim.actions)
    sim.notice("b", 10.0)
    assert len(sim.actions) == count


def test_nodes_that_went_long_ago_are_forgotten() -> None:
    sim = Sim(CoreConfig(gone_memory_s=60.0))
    sim.join("a")
    sim.left("a")
    sim.join("b")
    assert "a" in sim.state.nodes
    sim.pass_time(61.0)
    sim.join("c")
    assert set(sim.state.nodes) == {"b", "c"}


def test_the_thresholds_of_the_running_manager_are_part_of_the_journal() -> None:
    sim = Sim()
    changed = CoreConfig(growth_min_gain=0.9)
    sim.feed(e.ManagerStarted(at_s=sim.now_s, epoch=2, config=changed))
    assert sim.state.config == changed
    assert sim.state.epoch == 2


def test_a_profile_on_a_single_node_uses_two_of_its_slots() -> None:
    sim = Sim()
    sim.hold("profile")
    sim.join("a", slots=4)
    sim.submit("j")
    start = sim.all_of(a.StartRanks)[0]
    assert isinstance(start, a.StartRanks)
    assert (start.kind, start.ranks) == (GenerationKind.PROFILE, (0, 1))


def test_a_lost_connection_touches_only_jobs_whose_failure_it_explains() -> None:
    sim = _running("a", "b")
    sim.submit("waiting")
    before = sim.state.jobs
    sim.disconnect("b")
    assert sim.state.jobs is before
