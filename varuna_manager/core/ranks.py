"""What ranks report. Reports of another generation than the current one are ignored, except root causes."""

from dataclasses import replace

from varuna_manager.core import failures, generations, policy, resuming, warmth
from varuna_manager.core.change import Change, without
from varuna_manager.core.events import (
    GenerationGone,
    GenerationKept,
    RankActive,
    RankDrained,
    RankFailed,
    RankFinished,
    RankPrepared,
    RankReady,
    SaveFailed,
    StepDurable,
)
from varuna_manager.core.phases import JobPhase
from varuna_manager.core.state import Job, Run
from varuna_manager.core.words import What
from varuna_runtime.spec.copies import Version
from varuna_runtime.spec.generation import Cause, GenerationKind

RankEvent = RankPrepared | RankReady | RankActive | RankDrained | RankFinished | RankFailed


def on_rank(change: Change, event: RankEvent) -> None:
    """Record a rank's report and do what the last missing one allows."""
    job = change.state.jobs.get(event.job)
    if job is None or job.is_over:
        return
    run = job.run
    if run is None or run.number != event.generation:
        if isinstance(event, RankFailed) and job.open_generation == event.generation > 0:
            _late(change, job, event)
        return
    if event.rank in run.ranks:
        _dispatch(change, job, run, event)


def _dispatch(change: Change, job: Job, run: Run, event: RankEvent) -> None:
    match event:
        case RankPrepared():
            _prepared(change, job, run, event)
        case RankReady():
            change.put_job(replace(job, run=replace(run, ready=run.ready | {event.rank})))
        case RankActive():
            _active(change, job, run, event)
        case RankDrained():
            _drained(change, job, run, event)
        case RankFinished():
            _finished(change, job, run, event)
        case RankFailed():
            failures.rank_failed(change, job, event)


def _late(change: Change, job: Job, event: RankFailed) -> None:
    if event.cause in policy.COUNTED and job.phase is not JobPhase.CANCELLING:
        failures.late_cause(change, job, event)


def _prepared(change: Change, job: Job, run: Run, event: RankPrepared) -> None:
    if run.is_activated:
        return
    if event.plan_hash != run.plan_hash:
        _mismatch(
            change, job, f"rank {event.rank} holds plan {event.plan_hash[:12]}, not {run.plan_hash[:12]}"
        )
        return
    run = replace(
        run,
        endpoints={**run.endpoints, event.rank: event.endpoint},
        loadable={**run.loadable, event.rank: _loadable(event)},
    )
    node = run.plan.placement[event.rank].node
    job = change.put_job(warmth.prepared(replace(job, run=run), node, run.members[node]))
    if len(run.endpoints) < len(run.ranks):
        return
    if run.kind is GenerationKind.TRAIN:
        resuming.resume(change, job, run)
    else:
        resuming.activate(change, job, run)


def _loadable(event: RankPrepared) -> tuple[Version, ...]:
    """A rank that knows of no versions loaded a durable step, or the initial weights."""
    loaded = event.loaded or Version(step=event.resume_step, generation=0)
    return tuple(sorted({loaded, *event.loadable}, reverse=True))


def _mismatch(change: Change, job: Job, message: str) -> None:
    failures.generation_failed(change, job, Cause.PLAN_MISMATCH, message)


def _active(change: Change, job: Job, run: Run, event: RankActive) -> None:
    if not run.is_activated:
        return
    run = replace(run, active=run.active | {event.rank}, first_step=max(run.first_step, event.step))
    job = change.put_job(replace(job, run=run))
    is_whole = len(run.active | run.finished) == len(run.ranks)
    if job.phase is JobPhase.STARTING and is_whole:
        _running(change, job, run)


def _running(change: Change, job: Job, run: Run) -> None:
    job = change.move_job(job, JobPhase.RUNNING, job.reason)
    is_first = job.first_running_s is None
    limit_s = job.spec.max_run_time_s
    if is_first and limit_s is not None:
        job = replace(job, run_limit_s=change.at_s + limit_s)
    if is_first:
        job = replace(job, first_running_s=change.at_s)
    morphs = job.morphs if is_first else job.morphs + 1
    morph_s = policy.smoothed_morph_s(job, change.at_s)
    job = change.put_job(
        replace(
            job,
            last_morph_s=change.at_s,
            morphs=morphs,
            morph_s=morph_s,
            halted_s=None,
            keep_by_s=change.at_s + change.config.keep_timeout_s
            if job.holders and job.kept_generation < run.number
            else None,
        )
    )
    took_s = change.at_s - run.started_s
    where = " out of memory" if run.resume and run.resume.generation else ""
    change.announce(What.RUNNING, f"at step {run.first_step}{where}, {took_s:.2f} s after its start", job=job)


def _drained(change: Change, job: Job, run: Run, event: RankDrained) -> None:
    if job.phase is not JobPhase.DRAINING or event.rank in run.finished:
        return
    is_kept = event.is_kept and (run.is_kept or not run.drained)  # one manifest is of all ranks
    run = replace(run, drained={**run.drained, event.rank: event.step}, is_kept=is_kept)
    job = replace(resuming.progressed(job, event.step), run=run)
    job = change.put_job(job) if event.is_kept else resuming.with_durable(change, job, event.step)
    _all_stopped(change, job, run)


def _finished(change: Change, job: Job, run: Run, event: RankFinished) -> None:
    run = replace(run, finished=run.finished | {event.rank}, drained=without(run.drained, event.rank))
    if run.kind is GenerationKind.PROFILE:
        change.put_job(replace(job, run=run))
        return
    weights = event.weights_sha256 if event.rank == 0 else job.weights_sha256
    job = resuming.with_durable(change, replace(job, run=run, weights_sha256=weights), event.step)
    if len(run.finished) == len(run.ranks):
        reason = f"all steps done; weights {weights}"
        generations.finish(change, job, JobPhase.SUCCEEDED, What.SUCCEEDED, reason)
    elif job.phase is JobPhase.DRAINING:
        _all_stopped(change, job, run)


def _all_stopped(change: Change, job: Job, run: Run) -> None:
    if run.is_stopped:
        step = max(run.drained.values(), default=job.durable_step or 0)
        where = "in memory" if run.is_kept else "durable"
        change.announce(What.DRAINED, f"at step {step}, {where}: {job.reason}", job=job)
        job = generations.drain_took(
            change,
            replace(
                job,
                is_reached_exact=True,
                stopped_generation=run.number if run.is_kept else job.stopped_generation,
            ),
            run,
        )
        generations.begin(change, generations.stop(change, job), job.reason)


def on_durable(change: Change, event: StepDurable) -> None:
    """A manifest exists, whichever generation wrote it; progress clears what failed before."""
    job = change.state.jobs.get(event.job)
    if job is None or job.is_over or not 0 < event.generation <= job.generation:
        return
    before = job.durable_step
    if event.step >= job.passed_over:
        job = replace(job, passed_over=0)  # it was made anew, or is of no interest any more
    job = resuming.with_durable(change, job, event.step)
    if job.run is not None and job.run.number == event.generation > job.kept_generation:
        job = change.put_job(replace(job, kept_generation=event.generation, keep_by_s=None))
    if job.durable_step != before and job.save_failed_s is not None:
        failed_s = change.at_s - job.save_failed_s
        job = change.put_job(replace(job, save_failed_s=None, durable_announced_s=change.at_s))
        why = f"step {job.durable_step} is durable, after {failed_s:.1f} s in which saves failed"
        change.announce(What.SAVED_AGAIN, why, job=job)
        return
    is_due = change.at_s - job.durable_announced_s >= change.config.durable_announce_s
    if job.durable_step != before and is_due:
        job = change.put_job(replace(job, durable_announced_s=change.at_s))
        change.announce(What.DURABLE, f"step {job.durable_step}", job=job)


def on_save_failed(change: Change, event: SaveFailed) -> None:
    """Training goes on; it is told at once, and then now and then for as long as it lasts."""
    job = change.state.jobs.get(event.job)
    if job is None or job.is_over or not 0 < event.generation <= job.generation:
        return
    is_first = job.save_failed_s is None
    is_due = change.at_s - job.save_failed_announced_s >= change.config.durable_announce_s
    job = change.put_job(replace(job, save_failed_s=change.at_s if is_first else job.save_failed_s))
    if not is_first and not is_due:
        return
    job = change.put_job(replace(job, save_failed_announced_s=change.at_s))
    last = "nothing is durable yet"
    if job.durable_step is not None:
        age = "" if job.durable_s is None else f" and {change.at_s - job.durable_s:.0f} s old"
        last = f"the last durable step is {job.durable_step}{age}"
    change.announce(What.SAVE_FAILED, f"step {event.step}: {event.reason}; {last}", job=job)


def on_kept(change: Change, event: GenerationKept) -> None:
    """The state of a generation is in safe places: copies of older ones may go."""
    job = change.state.jobs.get(event.job)
    if job is None or job.is_over or not job.kept_generation < event.generation <= job.generation:
        return
    job = resuming.progressed(job, event.step)
    is_current = job.run is not None and job.run.number == event.generation
    keep_by_s = None if is_current else job.keep_by_s
    change.put_job(replace(job, kept_generation=event.generation, keep_by_s=keep_by_s))


def on_gone(change: Change, event: GenerationGone) -> None:
    """No process of that generation is left on the node; ranks that had not ended before count as crashed."""
    job = change.state.jobs.get(event.job)
    host = job.hosts.get(event.node) if job else None
    if job is None or host is None or host.generation != event.generation:
        return
    job = change.put_job(replace(job, hosts=without(job.hosts, event.node)))
    run = job.run
    if run is None or run.number != event.generation or not run.unstopped(event.node):
        return
    ranks = ", ".join(map(str, run.unstopped(event.node)))
    failures.generation_failed(
        change, job, Cause.WORKER_CRASH, f"ranks {ranks} on {event.node} ended without a report"
    )
