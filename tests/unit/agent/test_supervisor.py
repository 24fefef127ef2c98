from varuna_runtime.agent import actions as a
from varuna_runtime.agent import events as e
from varuna_runtime.agent import records as r
from varuna_runtime.agent.supervisor import Limits, Supervisor
from varuna_runtime.spec.job import JobSpec

JOB = "gpt-1"


def order(generation: int, ranks: tuple[int, ...] = (0,), bundle: str = "b" * 64) -> r.StartOrder:
    return r.StartOrder(
        job=JOB,
        generation=generation,
        kind=r.GenerationKind.TRAIN,
        spec=JobSpec(name="gpt", entrypoint="train.py", batch_size=4, hang_timeout_s=20.0),
        job_json=b"{}",
        plan_json=b"{}",
        model_json=b"{}",
        ranks=ranks,
        bundle=bundle,
        store_url="memory://",
        bundle_store_url="memory://",
        resume_step=None,
        secrets={},
        generation_secret="",
    )


def key(generation: int, rank: int = 0) -> r.RankKey:
    return r.RankKey(job=JOB, generation=generation, rank=rank)


class Driver:
    """Feeds a supervisor; time moves only when told."""

    def __init__(self) -> None:
        self.supervisor = Supervisor(Limits())
        self.now_s = 100.0

    def feed(self, *events: e.Event) -> tuple[a.Action, ...]:
        out: tuple[a.Action, ...] = ()
        for event in events:
            out += self.supervisor.handle(event, self.now_s)
        return out

    def until_forked(self, generation: int, ranks: tuple[int, ...] = (0,)) -> None:
        self.feed(e.StartReceived(order=order(generation, ranks)), e.LauncherReady(launcher=1))
        self.feed(*(e.RankForked(key=key(generation, n), pid=1000 + n) for n in ranks))

    def until_active(self, generation: int, ranks: tuple[int, ...] = (0,)) -> None:
        self.until_forked(generation, ranks)
        for n in ranks:
            self.feed(said(key(generation, n), prepared(n)))
        self.feed(e.ActivateReceived(job=JOB, generation=generation, endpoints=()))
        for n in ranks:
            self.feed(said(key(generation, n), r.Ready()), said(key(generation, n), r.Active(step=0)))


def prepared(rank: int) -> r.Prepared:
    endpoint = r.Endpoint(rank=rank, host="127.0.0.1", port=1)
    return r.Prepared(plan_hash="h", endpoint=endpoint, resume_step=0)


def said(of: r.RankKey, report: r.RankReport) -> e.RankReported:
    return e.RankReported(key=of, report=report)


def exited(of: r.RankKey, exit_code: int | None = None, signal: int | None = None) -> e.RankExited:
    return e.RankExited(key=of, exit_code=exit_code, signal=signal, log_tail="last words")


def reports(actions: tuple[a.Action, ...]) -> list[r.RankReport]:
    return [action.report for action in actions if isinstance(action, a.Report)]


def test_a_start_opens_a_launcher_then_forks_every_rank_of_this_node() -> None:
    driver = Driver()
    assert driver.feed(e.StartReceived(order=order(1, (2, 5)))) == (
        a.OpenLauncher(launcher=1, generation=1, order=order(1, (2, 5)).launcher),
    )
    assert driver.feed(e.LauncherReady(launcher=1)) == (
        a.Fork(launcher=1, key=key(1, 2), threads=1),
        a.Fork(launcher=1, key=key(1, 5), threads=1),
    )


def test_prepared_ready_active_are_reported_in_order() -> None:
    driver = Driver()
    driver.until_forked(1)
    assert reports(driver.feed(said(key(1), prepared(0)))) == [prepared(0)]
    activate = driver.feed(e.ActivateReceived(job=JOB, generation=1, endpoints=()))
    assert activate == (a.CallActivate(key=key(1), endpoints=()),)
    assert reports(driver.feed(said(key(1), r.Ready()), said(key(1), r.Active(step=3)))) == [
        r.Ready(),
        r.Active(step=3),
    ]


def test_a_repeated_start_or_activate_changes_nothing() -> None:
    driver = Driver()
    driver.until_active(1)
    assert driver.feed(e.StartReceived(order=order(1))) == ()
    assert driver.feed(e.ActivateReceived(job=JOB, generation=1, endpoints=())) == ()


def test_a_newer_start_waits_until_every_older_process_is_really_gone() -> None:
    driver = Driver()
    driver.until_active(1, (0, 1))
    kills = driver.feed(e.StartReceived(order=order(2)))
    assert kills == (a.CallAbort(key=key(1, 0)), a.CallAbort(key=key(1, 1)))
    assert driver.feed(exited(key(1, 0), signal=9)) == ()
    assert driver.feed(exited(key(1, 1), signal=9)) == (
        a.ReportGone(job=JOB, generation=1),
        a.Fork(launcher=1, key=key(2), threads=1),
    )


def test_an_older_generation_is_refused() -> None:
    driver = Driver()
    driver.until_active(5)
    (refused,) = driver.feed(e.StartReceived(order=order(4)))
    assert isinstance(refused, a.Refuse)
    assert driver.supervisor.running() == (r.Running(job=JOB, generation=5, ranks=(0,)),)


def test_a_start_that_was_aborted_before_it_came_is_not_run() -> None:
    driver = Driver()
    gone = a.ReportGone(job=JOB, generation=3)
    assert driver.feed(e.AbortReceived(job=JOB, generation=3, reason="")) == (gone,)
    assert driver.feed(e.StartReceived(order=order(3))) == (gone,)
    assert driver.supervisor.is_idle


def test_an_abort_during_import_keeps_the_launcher_for_the_next_start() -> None:
    driver = Driver()
    driver.feed(e.StartReceived(order=order(1)))
    gone = driver.feed(e.AbortReceived(job=JOB, generation=1, reason=""))
    assert gone == (a.ReportGone(job=JOB, generation=1),)
    assert driver.feed(e.StartReceived(order=order(2))) == ()
    forks = driver.feed(e.LauncherReady(launcher=1))
    assert forks == (a.Fork(launcher=1, key=key(2), threads=1),)


def test_an_abort_between_fork_request_and_fork_kills_the_late_process() -> None:
    driver = Driver()
    driver.feed(e.StartReceived(order=order(1)), e.LauncherReady(launcher=1))
    assert driver.feed(e.AbortReceived(job=JOB, generation=1, reason="")) == ()
    assert driver.feed(e.RankForked(key=key(1), pid=77)) == (a.Kill(launcher=1, key=key(1), pid=77),)
    assert driver.feed(exited(key(1), signal=9)) == (a.ReportGone(job=JOB, generation=1),)


def test_t3_a_worker_that_exits_without_a_report_is_a_crash_and_its_neighbours_stay() -> None:
    driver = Driver()
    driver.until_active(1, (0, 1))
    actions = driver.feed(exited(key(1, 0), exit_code=1))
    (failed,) = reports(actions)
    assert isinstance(failed, r.Failed)
    assert (failed.cause, failed.exit_code, failed.detail) == (r.Cause.WORKER_CRASH, 1, "last words")
    assert driver.supervisor.running() == (r.Running(job=JOB, generation=1, ranks=(1,)),)


def test_a_worker_that_had_its_last_word_is_not_reported_again() -> None:
    driver = Driver()
    driver.until_active(1)
    failed = r.Failed(cause=r.Cause.USER_ERROR, message="boom")
    assert reports(driver.feed(said(key(1), failed))) == [failed]
    assert driver.feed(exited(key(1), exit_code=1)) == (a.ReportGone(job=JOB, generation=1),)


def test_t26_a_second_crash_in_the_middle_of_a_restart_is_reported_too() -> None:
    driver = Driver()
    driver.until_active(1)
    driver.feed(exited(key(1), signal=9), e.StartReceived(order=order(2)))
    driver.feed(e.RankForked(key=key(2), pid=5))
    (failed,) = reports(driver.feed(exited(key(2), signal=9)))
    assert isinstance(failed, r.Failed)
    assert failed.signal == 9
    assert driver.feed(e.StartReceived(order=order(3))) == (a.Fork(launcher=1, key=key(3), threads=1),)


def test_t1_a_frozen_worker_is_killed_and_reported_as_a_hang() -> None:
    driver = Driver()
    driver.until_active(1)
    driver.feed(e.RankBeat(key=key(1), in_step_s=0.1))
    driver.now_s += 5.1
    report, kill = driver.feed(e.Ticked())
    assert isinstance(report, a.Report)
    assert isinstance(report.report, r.Failed)
    assert report.report.cause is r.Cause.HANG
    assert kill == a.Kill(launcher=1, key=key(1), pid=1000)


def test_t1_a_worker_frozen_right_after_its_last_report_is_found_as_soon() -> None:
    driver = Driver()
    driver.until_active(1)
    driver.now_s += 5.1
    assert [type(action) for action in driver.feed(e.Ticked())] == [a.Report, a.Kill]


def test_a_worker_may_take_its_time_to_its_first_word() -> None:
    driver = Driver()
    driver.until_forked(1)
    driver.now_s += 59.0
    assert driver.feed(e.Ticked()) == ()
    driver.now_s += 2.0
    assert [type(action) for action in driver.feed(e.Ticked())] == [a.Report, a.Kill]


def test_a_beating_worker_is_left_alone_however_long_its_preparation_takes() -> None:
    driver = Driver()
    driver.until_forked(1)
    for _ in range(50):
        driver.now_s += 4.0
        assert driver.feed(e.RankBeat(key=key(1), in_step_s=0.0), e.Ticked()) == ()


def test_a_step_beyond_the_hang_timeout_is_a_hang() -> None:
    driver = Driver()
    driver.until_active(1)
    assert driver.feed(e.RankBeat(key=key(1), in_step_s=19.0)) == ()
    (failed,) = reports(driver.feed(e.RankBeat(key=key(1), in_step_s=21.0)))
    assert isinstance(failed, r.Failed)
    assert failed.cause is r.Cause.HANG


def test_a_failed_script_fails_every_waiting_rank_and_the_next_start_opens_anew() -> None:
    driver = Driver()
    driver.feed(e.StartReceived(order=order(1, (0, 1))))
    failure = r.Failed(cause=r.Cause.USER_ERROR, message="no such module")
    actions = driver.feed(e.LauncherFailed(launcher=1, failure=failure))
    assert reports(actions) == [failure, failure]
    assert actions[2:] == (a.ReportGone(job=JOB, generation=1), a.CloseLauncher(launcher=1))
    assert driver.feed(e.StartReceived(order=order(2))) == ()
    opened = driver.feed(e.LauncherGone(launcher=1, message=""))
    assert opened == (a.OpenLauncher(launcher=2, generation=2, order=order(2).launcher),)


def test_a_launcher_that_dies_takes_its_ranks_with_it() -> None:
    driver = Driver()
    driver.until_active(1, (0, 1))
    actions = driver.feed(e.LauncherGone(launcher=1, message="the launcher ended with signal 9"))
    assert [f.cause for f in reports(actions) if isinstance(f, r.Failed)] == [r.Cause.WORKER_CRASH] * 2
    assert actions[-1] == a.ReportGone(job=JOB, generation=1)
    assert driver.supervisor.is_idle


def test_t35_a_launcher_stuck_in_its_import_is_reported_and_ended() -> None:
    driver = Driver()
    driver.feed(e.StartReceived(order=order(1)))
    driver.now_s += 151.0
    actions = driver.feed(e.Ticked())
    (failed,) = reports(actions)
    assert isinstance(failed, r.Failed)
    assert failed.cause is r.Cause.HANG
    assert actions[-1] == a.CloseLauncher(launcher=1)


def test_forget_ends_everything_then_drops_the_files_once_all_is_gone() -> None:
    driver = Driver()
    driver.until_active(1)
    actions = driver.feed(e.ForgetReceived(job=JOB))
    assert actions == (a.Kill(launcher=1, key=key(1), pid=1000), a.CloseLauncher(launcher=1))
    driver.feed(exited(key(1), signal=9))
    assert driver.feed(e.LauncherGone(launcher=1, message="")) == (a.DropJob(job=JOB),)
    (refused,) = driver.feed(e.StartReceived(order=order(9)))
    assert isinstance(refused, a.Refuse)


def test_end_all_leaves_nothing() -> None:
    driver = Driver()
    driver.until_active(1, (0, 1))
    actions = driver.feed(e.EndAllReceived(reason="fenced"))
    assert a.CloseLauncher(launcher=1) in actions
    driver.feed(exited(key(1, 0), signal=9), exited(key(1, 1), signal=9))
    assert not driver.supervisor.is_idle
    driver.feed(e.LauncherGone(launcher=1, message=""))
    assert driver.supervisor.is_idle


def test_a_failed_call_is_told_only_if_the_worker_ends_without_a_word() -> None:
    driver = Driver()
    driver.until_forked(1)
    assert driver.feed(e.CallFailed(key=key(1), message="Prepare failed")) == ()
    (failed,) = reports(driver.feed(exited(key(1), exit_code=1)))
    assert isinstance(failed, r.Failed)
    assert failed.cause is r.Cause.START_FAILED


def test_a_rank_that_does_not_exit_after_its_last_word_is_killed() -> None:
    driver = Driver()
    driver.until_active(1)
    driver.feed(said(key(1), r.Drained(step=4)))
    driver.now_s += 10.1
    assert driver.feed(e.Ticked()) == (a.Kill(launcher=1, key=key(1), pid=1000),)
    assert driver.feed(e.Ticked()) == ()


def test_words_of_unknown_ranks_are_ignored() -> None:
    driver = Driver()
    assert driver.feed(said(key(7), r.Ready()), e.RankBeat(key=key(7), in_step_s=0.0)) == ()
    assert driver.feed(exited(key(7), exit_code=0), e.LauncherGone(launcher=9, message="")) == ()


def warm(bundle: str = "b" * 64) -> e.WarmReceived:
    return e.WarmReceived(order=order(0, bundle=bundle).launcher)


def opening(number: int, generation: int = 0, bundle: str = "b" * 64) -> a.OpenLauncher:
    return a.OpenLauncher(launcher=number, generation=generation, order=order(0, bundle=bundle).launcher)


WARM = (a.ReportWarm(job=JOB, reason=""),)


def test_a_warm_opens_a_launcher_without_ranks_and_says_when_it_is_ready() -> None:
    driver = Driver()
    assert driver.feed(warm()) == (opening(1),)
    assert driver.feed(warm()) == ()
    assert driver.feed(e.LauncherReady(launcher=1)) == WARM
    assert driver.feed(warm()) == WARM
    assert driver.supervisor.running() == ()


def test_a_start_on_a_warm_node_forks_at_once() -> None:
    driver = Driver()
    driver.feed(warm(), e.LauncherReady(launcher=1))
    (fork,) = driver.feed(e.StartReceived(order=order(1)))
    assert isinstance(fork, a.Fork)


def test_a_warm_that_meets_the_launcher_of_a_start_is_answered_when_that_is_ready() -> None:
    driver = Driver()
    driver.feed(e.StartReceived(order=order(1)))
    assert driver.feed(warm()) == ()
    assert WARM[0] in driver.feed(e.LauncherReady(launcher=1))


def test_a_failed_warm_up_is_told_once_and_not_tried_again() -> None:
    driver = Driver()
    driver.feed(warm())
    failure = r.Failed(cause=r.Cause.USER_ERROR, message="no module named data")
    cold, close = driver.feed(e.LauncherFailed(launcher=1, failure=failure))
    assert cold == a.ReportWarm(job=JOB, reason="no module named data")
    assert close == a.CloseLauncher(launcher=1)
    assert driver.feed(e.LauncherGone(launcher=1, message="exit code 1")) == ()
    assert driver.supervisor.is_idle
    assert driver.feed(warm()) == (opening(2),)


def test_a_warm_launcher_that_dies_is_told() -> None:
    driver = Driver()
    driver.feed(warm(), e.LauncherReady(launcher=1))
    gone = driver.feed(e.LauncherGone(launcher=1, message="the launcher ended with signal SIGKILL"))
    assert gone == (a.ReportWarm(job=JOB, reason="the launcher ended with signal SIGKILL"),)


def test_a_warm_up_that_takes_too_long_is_ended_and_told() -> None:
    driver = Driver()
    driver.feed(warm())
    driver.now_s += Limits().launcher_s + 1
    cold, close = driver.feed(e.Ticked())
    assert isinstance(cold, a.ReportWarm)
    assert "did not reach train()" in cold.reason
    assert close == a.CloseLauncher(launcher=1)


def test_a_warm_of_another_bundle_replaces_the_launcher_when_no_rank_needs_it() -> None:
    driver = Driver()
    driver.feed(warm(), e.LauncherReady(launcher=1))
    assert driver.feed(warm("c" * 64)) == (a.CloseLauncher(launcher=1),)
    assert driver.feed(e.LauncherGone(launcher=1, message="")) == (opening(2, bundle="c" * 64),)


def test_a_warm_node_that_ends_everything_says_so_and_opens_nothing_anew() -> None:
    driver = Driver()
    driver.feed(warm(), e.LauncherReady(launcher=1))
    assert driver.feed(e.EndAllReceived(reason="no manager for too long")) == (
        a.ReportWarm(job=JOB, reason="no manager for too long"),
        a.CloseLauncher(launcher=1),
    )
    assert driver.feed(e.LauncherGone(launcher=1, message="")) == ()
    assert driver.supervisor.is_idle


def test_a_forgotten_job_closes_its_warm_launcher_and_stays_cold() -> None:
    driver = Driver()
    driver.feed(warm(), e.LauncherReady(launcher=1))
    assert driver.feed(e.ForgetReceived(job=JOB)) == (a.CloseLauncher(launcher=1),)
    assert driver.feed(e.LauncherGone(launcher=1, message="")) == (a.DropJob(job=JOB),)
    assert driver.feed(warm()) == (a.ReportWarm(job=JOB, reason="the job is over"),)


def test_an_aborted_rank_may_complete_its_copy_for_a_second_and_is_killed_then() -> None:
    driver = Driver()
    driver.until_active(1)
    abort = e.AbortReceived(job=JOB, generation=1, reason="")
    assert driver.feed(abort) == (a.CallAbort(key=key(1)),)
    driver.now_s += 1.0
    assert driver.feed(e.Ticked(), abort) == ()
    driver.now_s += 0.1
    assert driver.feed(e.Ticked()) == (a.Kill(launcher=1, key=key(1), pid=1000),)
    assert driver.feed(exited(key(1), signal=9)) == (a.ReportGone(job=JOB, generation=1),)


def test_a_rank_that_said_its_last_word_ends_by_itself_unless_it_takes_longer_than_an_aborted_one() -> None:
    driver = Driver()
    driver.until_active(1)
    driver.feed(said(key(1), r.Failed(cause=r.Cause.PEER_LOST, message="")))
    assert driver.feed(e.AbortReceived(job=JOB, generation=1, reason="")) == ()
    driver.now_s += 1.1
    assert driver.feed(e.Ticked()) == (a.Kill(launcher=1, key=key(1), pid=1000),)


def test_a_rank_that_has_nothing_to_copy_yet_is_killed_at_once_when_aborted() -> None:
    driver = Driver()
    driver.until_forked(1)
    actions = driver.feed(e.AbortReceived(job=JOB, generation=1, reason=""))
    assert actions == (a.Kill(launcher=1, key=key(1), pid=1000),)


def test_a_node_that_ends_everything_gives_no_time_for_copies() -> None:
    driver = Driver()
    driver.until_active(1)
    actions = driver.feed(e.EndAllReceived(reason="fenced"))
    assert a.Kill(launcher=1, key=key(1), pid=1000) in actions


def test_t1_a_stopped_worker_is_ended_at_once_and_only_once() -> None:
    driver = Driver()
    driver.until_active(1)
    assert driver.supervisor.pids() == {key(1): 1000}
    frozen = e.RankFrozen(key=key(1), stopped_s=0.8)
    report, kill = driver.feed(frozen)
    assert isinstance(report, a.Report)
    assert isinstance(report.report, r.Failed)
    assert (report.report.cause, report.report.message[:35]) == (
        r.Cause.HANG,
        "the process has been stopped for 0.",
    )
    assert kill == a.Kill(launcher=1, key=key(1), pid=1000)
    assert driver.feed(frozen) == ()
    assert driver.supervisor.pids() == {}


def test_an_agent_that_stood_still_does_not_hold_the_silence_against_its_workers() -> None:
    driver = Driver()
    driver.until_active(1)
    driver.now_s += 60.0
    assert driver.feed(e.StoodStill(), e.Ticked()) == ()
    driver.now_s += 4.0
    assert driver.feed(e.Ticked()) == ()
    driver.now_s += 2.0
    assert [type(action) for action in driver.feed(e.Ticked())] == [a.Report, a.Kill]


def test_a_worker_that_computes_without_a_word_has_as_long_as_a_step_may_take() -> None:
    driver = Driver()
    driver.until_active(1)
    for _ in range(4):
        driver.now_s += 4.0
        assert driver.feed(e.RankBusy(key=key(1)), e.Ticked()) == ()
    driver.now_s += 4.5
    assert [type(action) for action in driver.feed(e.RankBusy(key=key(1)), e.Ticked())] == [a.Report, a.Kill]


def test_a_worker_that_stopped_computing_without_a_word_is_a_hang_as_soon_as_an_idle_one() -> None:
    driver = Driver()
    driver.until_active(1)
    driver.feed(e.RankBusy(key=key(1)))
    driver.now_s += 5.1
    assert [type(action) for action in driver.feed(e.Ticked())] == [a.Report, a.Kill]
