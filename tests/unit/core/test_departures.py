"""When work begins to move off a node under notice: as late as a drain still fits before its end."""

from dataclasses import replace

import pytest

from tests.support.core_sim import Sim
from varuna_manager.core import actions as a
from varuna_manager.core import events as e
from varuna_manager.core.config import CoreConfig
from varuna_manager.core.phases import JobPhase
from varuna_manager.core.views import job_views, node_views
from varuna_runtime.spec.generation import Cause

# A step of two nodes is predicted to take 4 s; so the first drain begins 2 + 15 + 2 x 4 s before the end.
FIRST_S = 25.0


def _running(*nodes: str, config: CoreConfig | None = None, **spec: object) -> Sim:
    sim = Sim(config)
    for node in nodes or ("a", "b"):
        sim.join(node)
    sim.submit("j", **spec)
    assert sim.job("j").phase is JobPhase.RUNNING
    sim.actions.clear()
    return sim


def _drain_after(sim: Sim, limit_s: float = 200.0) -> float:
    """Let time pass until the ranks are told to drain; return how long that took."""
    began_s = sim.now_s
    while not sim.all_of(a.DrainRanks):
        assert sim.now_s - began_s < limit_s, "no drain"
        sim.pass_time(0.5)
    return sim.now_s - began_s


def _members(sim: Sim) -> list[str]:
    run = sim.job("j").run
    assert run is not None
    return sorted(run.members)


def _seen(sim: Sim, step_s: float) -> e.StepSeen:
    return e.StepSeen(
        at_s=sim.now_s,
        job="j",
        generation=sim.job("j").generation,
        step=1,
        loss=1.0,
        samples=32,
        step_s=step_s,
        loss_hex="0x1p0",
    )


def test_the_first_drain_leaves_time_for_two_steps_a_guess_and_the_margin() -> None:
    sim = _running()
    sim.notice("b", 120.0)
    assert _drain_after(sim) == 120.0 - FIRST_S
    assert _members(sim) == ["a"]


def test_steps_that_are_slower_than_predicted_bring_the_drain_forward() -> None:
    sim = _running()
    sim.feed(_seen(sim, 10.0))
    sim.notice("b", 120.0)
    assert _drain_after(sim) == 120.0 - 2.0 - 15.0 - 20.0


def test_steps_that_are_faster_than_predicted_do_not_put_it_off() -> None:
    sim = _running()
    sim.feed(_seen(sim, 0.1))
    sim.notice("b", 120.0)
    assert _drain_after(sim) == 120.0 - FIRST_S


@pytest.mark.parametrize(("took_s", "stop_s"), [(1.0, 5.0), (20.0, 30.0)])
def test_a_drain_that_was_seen_takes_the_place_of_the_guess(took_s: float, stop_s: float) -> None:
    sim = _running("a", "b", "c")
    sim.hold("drain")
    sim.drain("c")
    sim.pass_time(took_s)
    sim.release("drain")
    sim.actions.clear()
    sim.notice("b", 120.0)
    assert _drain_after(sim) == 120.0 - 2.0 - stop_s - 8.0


def test_a_drain_that_was_not_done_in_time_counts_as_long_as_it_was_given() -> None:
    sim = _running("a", "b", "c")
    sim.hold("drain")
    sim.notice("c", 20.0)
    sim.pass_time(18.0)
    assert sim.job("j").drain_s == 18.0


@pytest.mark.parametrize("in_s", [3.0, FIRST_S])
def test_a_short_notice_drains_at_once(in_s: float) -> None:
    sim = _running()
    sim.hold("drain")
    sim.notice("b", in_s)
    first, _ = sim.all_of(a.DrainRanks)
    assert isinstance(first, a.DrainRanks)
    assert first.within_s == in_s - 2.0


def test_an_urgent_notice_drains_at_once_however_long_it_is() -> None:
    sim = _running()
    notice = e.NoticeReceived(
        at_s=sim.now_s, node="b", incarnation="b#1", deadline_s=sim.now_s + 90.0, source="agent"
    )
    sim.feed(replace(notice, is_urgent=True))
    assert _members(sim) == ["a"]


def test_an_operator_s_drain_of_a_noticed_node_does_not_wait() -> None:
    sim = _running()
    sim.notice("b", 120.0)
    sim.drain("b")
    assert _members(sim) == ["a"]


def test_a_notice_that_is_withdrawn_while_the_drain_waits_leaves_the_training_alone() -> None:
    sim = _running()
    sim.notice("b", 60.0)
    sim.pass_time(30.0)
    sim.cancel_notice("b")
    sim.pass_time(60.0)
    assert (sim.job("j").generation, sim.all_of(a.DrainRanks)) == (2, [])
    assert sim.job("j").asked_version is None


def test_a_notice_that_moves_moves_the_drain() -> None:
    sim = _running()
    sim.notice("b", 40.0)
    sim.pass_time(10.0)
    sim.notice("b", 100.0)
    assert _drain_after(sim) == 100.0 - FIRST_S


def test_a_threshold_of_a_notice_that_was_withdrawn_since_is_void() -> None:
    sim = _running()
    late = e.DeadlinePassed(at_s=sim.now_s, subject="notice:b", deadline_s=sim.now_s)
    sim.feed(late)
    sim.notice("b", 120.0)
    sim.cancel_notice("b")
    sim.feed(late)
    assert sim.all_of(a.DrainRanks) == []
    assert not sim.node("b").is_due


def test_one_drain_covers_every_notice_and_the_nearest_end_counts() -> None:
    sim = _running("a", "b", "c", "d")
    sim.notice("b", 100.0)
    sim.notice("c", 80.0)
    assert _drain_after(sim) == 80.0 - 2.0 - 15.0 - 4.0
    assert _members(sim) == ["a", "d"]


def test_a_member_out_of_touch_when_its_drain_is_due_drains_as_soon_as_it_is_back() -> None:
    sim = _running(config=CoreConfig(lease_s=20.0, activate_timeout_s=60.0))
    sim.notice("b", 30.0)
    sim.pass_time(1.0)
    sim.disconnect("b")
    sim.pass_time(10.0)
    assert sim.all_of(a.DrainRanks) == []
    sim.rejoin("b")
    assert _members(sim) == ["a"]


def test_the_plan_for_those_who_stay_is_there_when_the_drain_is_done() -> None:
    sim = _running("a", "b", "c")
    sim.notice("b", 60.0)
    (asked,) = sim.all_of(a.MakePlan)
    assert isinstance(asked, a.MakePlan)
    assert [node.node for node in asked.request.nodes] == ["a", "c"]
    sim.hold("plan")
    _drain_after(sim)
    assert _members(sim) == ["a", "c"]


def test_a_plan_made_ahead_is_asked_for_anew_once_the_pool_has_changed() -> None:
    sim = _running("a", "b", "c")
    sim.notice("b", 60.0)
    sim.hold("plan", "drain")
    _drain_after(sim)
    sim.drain("c")
    sim.release("drain")
    assert sim.job("j").phase is JobPhase.PLANNING
    sim.release("plan")
    assert _members(sim) == ["a"]


def test_a_growth_starts_by_the_plan_that_it_was_decided_by() -> None:
    sim = _running()
    sim.pass_time(6.0)
    sim.join("c")
    assert _members(sim) == ["a", "b", "c"]
    assert len(sim.all_of(a.MakePlan)) == 1


def test_a_newcomer_takes_the_place_of_the_leaving_one_in_the_drain() -> None:
    sim = _running()
    sim.pass_time(6.0)
    sim.notice("b", 60.0)
    sim.join("c")
    assert _members(sim) == ["a", "b"], "two nodes for two save nothing"
    _drain_after(sim)
    assert _members(sim) == ["a", "c"]
    assert sim.job("j").morphs == 1


def test_newcomers_that_pay_are_grown_onto_without_the_leaving_one_at_once() -> None:
    sim = _running()
    sim.pass_time(6.0)
    sim.notice("b", 90.0)
    sim.join("c")
    sim.join("d")
    assert _members(sim) == ["a", "c", "d"]
    assert sim.job("j").morphs == 1
    assert sim.job("j").reason.startswith("a larger pool: 1x3 on 3 nodes saves 33% of a step")


def test_a_place_that_becomes_free_is_warmed_up_for_ahead() -> None:
    sim = _running(max=2)
    sim.join("c")
    assert sim.all_of(a.WarmNode) == []
    sim.notice("b", 60.0)
    assert [x.incarnation for x in sim.all_of(a.WarmNode) if isinstance(x, a.WarmNode)] == ["c#1"]


def test_nothing_is_asked_while_too_few_would_stay() -> None:
    sim = _running(min=2)
    sim.notice("b", 60.0)
    _drain_after(sim)
    assert sim.all_of(a.MakePlan) == []
    assert sim.job("j").phase is JobPhase.PARKED


def test_people_see_until_when_a_noticed_node_is_used() -> None:
    sim = _running()
    sim.notice("b", 60.0)
    sim.pass_time(5.0)
    (view,) = (view for view in node_views(sim.state, sim.now_s) if view.node == "b")
    assert view.reason == "notice from file: 60.0 s ahead; drains in 30 s"
    (job,) = job_views(sim.state)
    assert job.reason == "the pool has 2 nodes; soon to leave: b (notice from file: 60.0 s ahead)"
    told = [x.why for x in sim.all_of(a.Announce) if isinstance(x, a.Announce) and x.what == "node-notice"]
    assert told == ["vanishes in 60.0 s (file); used for about 35 s of them"]
    sim.hold("drain")
    sim.pass_time(30.0)
    reasons = [view.reason for view in node_views(sim.state, sim.now_s)]
    assert reasons == ["", "notice from file: 60.0 s ahead; drains now"]


@pytest.mark.parametrize("is_urgent", [False, True])
def test_a_drain_that_hangs_is_given_up_in_the_usual_time_however_far_off_a_notice_is(
    *, is_urgent: bool
) -> None:
    sim = _running("a", "b", "c")
    sim.notice("c", 3600.0)
    sim.hold("drain")
    if is_urgent:
        sim.notice("b", 1800.0, is_urgent=True)
    else:
        sim.drain("b")
    sim.pass_time(CoreConfig().drain_timeout_s)
    assert sim.job("j").phase is JobPhase.RUNNING
    assert _members(sim) == ["a"]


def test_a_drain_has_time_for_the_steps_that_it_needs() -> None:
    sim = _running(config=CoreConfig(drain_timeout_s=20.0))
    sim.hold("drain")
    sim.drain("b")
    sent = [x.within_s for x in sim.all_of(a.DrainRanks) if isinstance(x, a.DrainRanks)]
    assert sent == [FIRST_S, FIRST_S]


def test_a_notice_that_left_no_time_for_its_drain_makes_no_later_drain_begin_later() -> None:
    sim = _running("a", "b", "c")
    sim.hold("drain")
    sim.notice("c", 3.0)
    sim.pass_time(1.0)
    sim.release("drain")
    assert _members(sim) == ["a", "b"]
    sim.actions.clear()
    sim.notice("b", 120.0)
    assert _drain_after(sim) <= 120.0 - FIRST_S


@pytest.mark.parametrize(
    ("rank", "in_s", "is_free"), [(0, 3600.0, False), (1, 3600.0, True), (0, 30.0, True)]
)
def test_a_crash_is_the_notice_s_doing_on_the_node_that_leaves_or_when_it_does(
    rank: int, in_s: float, is_free: bool
) -> None:
    sim = _running()
    sim.notice("b", in_s)
    sim.pass_time(4.0)
    sim.hold("drain", "plan")
    sim.pass_time(2.0)
    sim.fail("j", rank, Cause.WORKER_CRASH, "signal 11")
    assert sim.job("j").reason.startswith("PREEMPTED") is is_free
    assert sim.job("j").failures.get(Cause.WORKER_CRASH, 0) == int(not is_free)
