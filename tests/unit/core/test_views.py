from dataclasses import replace

import pytest

from tests.support.core_sim import Sim
from varuna_manager.core import events as e
from varuna_manager.core.phases import JobPhase
from varuna_manager.core.views import CopiesView, JobView, NodeView, job_views, node_views


def _job(sim: Sim, name: str) -> JobView:
    return next(view for view in job_views(sim.state) if view.job == name)


def _node(sim: Sim, name: str) -> NodeView:
    return next(view for view in node_views(sim.state, sim.now_s) if view.node == name)


@pytest.fixture
def sim() -> Sim:
    sim = Sim()
    sim.join("a")
    sim.join("b")
    sim.submit("j")
    return sim


def test_a_running_job_shows_layout_speed_and_time_left(sim: Sim) -> None:
    sim.train("j", 5)
    sim.durable("j", 4)
    view = _job(sim, "j")
    assert (view.state, view.layout, view.nodes, view.generation) == (JobPhase.RUNNING, "1x2", 2, 2)
    assert (view.step, view.durable_step, view.num_steps) == (5, 4, 20)
    assert (view.loss, view.samples_per_s, view.eta_s) == (0.2, 64.0, 7.5)
    assert view.ended_at == 0.0


def test_before_the_first_step_of_a_generation_speed_and_time_left_are_unknown(sim: Sim) -> None:
    view = _job(sim, "j")
    assert (view.step, view.samples_per_s, view.eta_s) == (0, 0.0, -1.0)


def test_steps_are_counted_on_from_the_durable_one_after_a_loss(sim: Sim) -> None:
    sim.train("j", 6)
    sim.durable("j", 4)
    sim.train("j", 1)
    sim.left("b")
    sim.train("j", 5)
    view = _job(sim, "j")
    assert (view.step, view.morphs) == (9, 1)


def test_a_preempted_job_says_so_with_the_node_until_it_is_told_otherwise(sim: Sim) -> None:
    sim.notice("b", 20.0)
    assert "PREEMPTED" in _job(sim, "j").reason
    assert "b (notice from file: 20.0 s ahead)" in _job(sim, "j").reason


def test_a_job_that_waits_for_another_says_for_which_and_that_priority_does_not_preempt(sim: Sim) -> None:
    sim.submit("k", priority=99)
    assert _job(sim, "k").reason == "job j (RUNNING) holds the pool; a higher priority does not preempt it"


def test_the_second_in_the_queue_says_what_the_first_waits_for() -> None:
    sim = Sim()
    sim.submit("j", min=2)
    sim.submit("k")
    sim.join("a")
    assert _job(sim, "j").reason == "waiting for nodes: 1 usable, nodes.min is 2"
    assert _job(sim, "k").reason.startswith("job j is before it and waits: waiting for nodes: 1 usable")


def test_after_a_restart_a_pending_job_waits_for_the_nodes_to_come_back() -> None:
    sim = Sim()
    sim.join("a")
    sim.restart()
    sim.submit("j")
    assert "started again" in _job(sim, "j").reason


def test_a_finished_job_shows_its_end_and_its_weights(sim: Sim) -> None:
    sim.pass_time(2.0)
    sim.finish("j")
    view = _job(sim, "j")
    assert (view.state, view.step, view.weights_sha256) == (JobPhase.SUCCEEDED, 20, "f" * 64)
    assert view.ended_at == sim.now_s


def test_a_member_node_shows_its_job_and_ranks(sim: Sim) -> None:
    view = _node(sim, "b")
    assert (view.state, view.job, view.ranks, view.notice_in_s) == ("READY", "j", (1,), -1.0)


def test_a_notice_shows_the_time_left(sim: Sim) -> None:
    sim.hold("drain")
    sim.notice("b", 30.0)
    sim.pass_time(5.0)
    view = _node(sim, "b")
    assert (view.state, view.notice_in_s) == ("NOTICED", 25.0)
    sim.left("b")
    assert _node(sim, "b").notice_in_s == -1.0


def test_a_lost_node_shows_why_and_hosts_nothing(sim: Sim) -> None:
    sim.freeze("b")
    sim.pass_time(4.0)
    view = _node(sim, "b")
    assert (view.state, view.reason) == ("LOST", "lease ended: not heard for 3 s")
    assert (view.job, view.ranks) == ("", ())


def test_spare_nodes_say_why_they_are_not_used(sim: Sim) -> None:
    sim.join("g", kind="gpu:h200")
    sim.join("c")
    assert _node(sim, "g").reason == "spare: job j is pinned to cpu:avx2 (exactness: bitwise)"
    assert _node(sim, "c").reason == "spare: the plan of job j does not use it"


def _with_copies() -> Sim:
    sim = Sim()
    sim.has_vaults = sim.has_pipelines = True
    sim.join("a")
    sim.join("b")
    sim.submit("j")
    sim.train("j", 3)
    return sim


def test_recoverable_is_what_the_ranks_say_and_never_less_than_durable() -> None:
    sim = _with_copies()
    sim.durable("j", 1)
    assert _job(sim, "j").recoverable_step == 1
    sim.feed(replace(_step(sim, 3), recoverable=4))
    assert _job(sim, "j").recoverable_step == 4
    sim.feed(replace(_step(sim, 4), recoverable=3))
    sim.durable("j", 5)
    assert _job(sim, "j").recoverable_step == 5


def test_copies_of_a_job_on_one_node_survive_no_loss_of_it() -> None:
    sim = Sim()
    sim.has_vaults = True
    sim.join("a")
    sim.submit("j")
    sim.train("j", 3)
    sim.durable("j", 1)
    sim.feed(replace(_step(sim, 3), recoverable=4))
    assert _job(sim, "j").recoverable_step == 1


def test_a_node_shows_whose_copies_it_may_hold() -> None:
    sim = _with_copies()
    sim.feed(replace(_step(sim, 3), recoverable=4))
    (held,) = _node(sim, "a").copies
    assert held == CopiesView(job="j", generation=2, segments=(0, 1), step=4)


def _step(sim: Sim, step: int) -> e.StepSeen:
    return e.StepSeen(
        at_s=sim.now_s,
        job="j",
        generation=sim.job("j").generation,
        step=step,
        loss=1.0,
        samples=32,
        step_s=0.5,
        loss_hex="0x1p0",
    )
