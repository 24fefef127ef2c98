from tests.support.core_sim import Sim
from varuna_manager.core.actions import StartRanks
from varuna_manager.core.config import CoreConfig
from varuna_manager.core.events import RankPrepared
from varuna_manager.core.phases import JobPhase
from varuna_runtime.spec.generation import Cause


def _running(config: CoreConfig | None = None, **spec: object) -> Sim:
    sim = Sim(config)
    sim.join("a")
    sim.join("b")
    sim.submit("j", **spec)
    assert sim.job("j").phase is JobPhase.RUNNING
    return sim


def test_a_user_error_ends_the_job_with_its_message() -> None:
    sim = _running()
    sim.fail("j", 1, Cause.USER_ERROR, "ValueError: no")
    job = sim.job("j")
    assert (job.phase, job.reason) == (JobPhase.FAILED, "user_error: rank 1 on b: ValueError: no")


def test_a_failure_that_another_rank_tells_of_is_the_first_ones() -> None:
    sim = _running()
    sim.fail("j", 0, Cause.USER_ERROR, "ValueError: no", peer_rank=1)
    job = sim.job("j")
    assert (job.phase, job.reason) == (JobPhase.FAILED, "user_error: rank 1 on b: ValueError: no")


def test_a_failure_of_a_rank_that_does_not_exist_is_of_who_tells_it() -> None:
    sim = _running()
    sim.fail("j", 0, Cause.USER_ERROR, "ValueError: no", peer_rank=99)
    assert sim.job("j").reason == "user_error: rank 0 on a: ValueError: no"


def test_only_the_first_cause_of_a_generation_counts() -> None:
    sim = _running()
    generation = sim.job("j").generation
    for rank in (0, 1):
        sim.fail("j", rank, Cause.WORKER_CRASH, "signal 6", generation=generation)
    assert sim.job("j").failures == {Cause.WORKER_CRASH: 1}


def test_peer_lost_is_never_counted() -> None:
    sim = _running(worker_crash=0, hang=0)
    sim.fail("j", 0, Cause.PEER_LOST)
    assert sim.job("j").failures == {}
    assert sim.job("j").phase is JobPhase.RUNNING


def test_the_root_cause_behind_collateral_is_counted_without_another_restart() -> None:
    sim = _running()
    generation = sim.job("j").generation
    sim.fail("j", 0, Cause.PEER_LOST)
    sim.fail("j", 1, Cause.WORKER_CRASH, "signal 9", generation=generation)
    assert sim.job("j").failures == {Cause.WORKER_CRASH: 1}
    assert sim.job("j").generation == generation + 1


def test_a_node_loss_behind_collateral_closes_the_cause() -> None:
    sim = _running()
    generation = sim.job("j").generation
    sim.hold("plan")
    sim.agents["b"].is_alive = False
    sim.fail("j", 0, Cause.PEER_LOST)
    sim.disconnect("b")
    sim.fail("j", 1, Cause.WORKER_CRASH, "signal 9", generation=generation)
    assert sim.job("j").failures == {}
    assert (sim.job("j").fruitless, sim.job("j").reason) == (0, "PREEMPTED: lost b (stream ended)")


def test_whatever_fails_beside_a_leaving_node_is_taken_for_its_loss() -> None:
    sim = _running(worker_crash=0)
    sim.hold("drain")
    sim.notice("b", 20.0)
    sim.fail("j", 0, Cause.WORKER_CRASH, "signal 9")
    assert sim.job("j").failures == {}
    assert sim.job("j").phase is JobPhase.RUNNING


def test_durable_progress_gives_crash_retries_back_but_not_those_of_user_errors() -> None:
    sim = _running(user_error=1)
    sim.fail("j", 0, Cause.WORKER_CRASH)
    sim.pass_time(1.0)
    sim.fail("j", 0, Cause.USER_ERROR)
    sim.pass_time(2.0)
    sim.train("j", 3)
    sim.durable("j")
    job = sim.job("j")
    assert (job.failures, job.fruitless) == ({Cause.USER_ERROR: 1}, 0)


def test_a_job_that_only_ever_fails_ends_with_the_first_cause() -> None:
    sim = _running(CoreConfig(fruitless_limit=3))
    for message in ("first", "second", "third", "fourth"):
        assert sim.job("j").phase is JobPhase.RUNNING
        sim.fail("j", 0, Cause.PEER_LOST, message)
        sim.pass_time(60.0)
    job = sim.job("j")
    assert job.phase is JobPhase.FAILED
    assert "4 generations in a row without durable progress" in job.reason
    assert "first: peer_lost: rank 0 on a: first" in job.reason


def test_ranks_that_hold_another_plan_are_started_anew() -> None:
    sim = _running()
    sim.hold("prepare")
    sim.fail("j", 0, Cause.PEER_LOST)
    generation = sim.job("j").generation
    _, agent, prepared = sim.waiting[0]
    assert isinstance(prepared, RankPrepared)
    sim.waiting[0] = ("prepare", agent, _with_hash(prepared, "0" * 64))
    sim.release("prepare")
    sim.pass_time(2.0)
    assert sim.job("j").generation == generation + 1
    assert sim.job("j").phase is JobPhase.RUNNING


def _with_hash(event: RankPrepared, plan_hash: str) -> RankPrepared:
    return RankPrepared(
        at_s=event.at_s,
        job=event.job,
        generation=event.generation,
        rank=event.rank,
        plan_hash=plan_hash,
        endpoint=event.endpoint,
        resume_step=event.resume_step,
    )


def test_ranks_that_loaded_different_steps_start_again_from_the_newest() -> None:
    sim = _running()
    sim.hold("prepare")
    sim.fail("j", 0, Cause.PEER_LOST)
    _, agent, prepared = sim.waiting[0]
    assert isinstance(prepared, RankPrepared)
    newer = RankPrepared(
        at_s=prepared.at_s,
        job="j",
        generation=prepared.generation,
        rank=prepared.rank,
        plan_hash=prepared.plan_hash,
        endpoint=prepared.endpoint,
        resume_step=7,
    )
    sim.waiting[0] = ("prepare", agent, newer)
    sim.release("prepare")
    sim.pass_time(2.0)
    newest = sim.all_of(StartRanks)[-1]
    assert isinstance(newest, StartRanks)
    assert newest.resume_step == 7


def test_a_late_report_of_a_finished_job_changes_nothing() -> None:
    sim = _running()
    sim.finish("j")
    before = sim.job("j")
    sim.fail("j", 0, Cause.USER_ERROR, "late")
    sim.durable("j", 3)
    sim.cancel("j")
    assert sim.job("j") == before
