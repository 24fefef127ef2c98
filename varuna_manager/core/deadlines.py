"""Timers: which there are, and what passing one means. Judged by the daemon's clock, in `at_s`."""

from collections.abc import Iterator
from dataclasses import replace

from varuna_manager.core import departures, failures, generations, nodes, warmth
from varuna_manager.core.change import Change
from varuna_manager.core.events import DeadlinePassed
from varuna_manager.core.phases import JobPhase
from varuna_manager.core.state import Job, Node, State, Timer
from varuna_manager.core.words import What
from varuna_runtime.spec.generation import Cause


def timers(state: State) -> Iterator[Timer]:
    """Yield every running timer: leases of nodes, deadlines of jobs, drains ahead of the ends of nodes."""
    yield from departures.timers(state)
    for node in state.nodes.values():
        if not node.is_gone:
            yield Timer(subject=f"node:{node.node}", deadline_s=lease_end_s(state, node))
    for job in state.iter_open():
        for deadline_s in _job_deadlines(job):
            yield Timer(subject=f"job:{job.job}", deadline_s=deadline_s)


def lease_end_s(state: State, node: Node) -> float:
    """Return until when the node counts as alive if nothing more is heard of it."""
    heard_s = max(state.seen.beats.get(node.node, 0.0), state.seen.stood_still_until_s)
    return max(node.lease_until_s, heard_s + state.config.lease_s)


def _job_deadlines(job: Job) -> set[float]:
    gone_by = {host.gone_by_s for host in job.hosts.values()}
    own = set() if job.is_over else {job.deadline_s, job.run_limit_s, job.keep_by_s, *warmth.deadlines(job)}
    return {deadline_s for deadline_s in own | gone_by if deadline_s is not None}


def on_deadline(change: Change, event: DeadlinePassed) -> None:
    """Act on a timer that is still set; one that was moved since is void."""
    subject, _, name = event.subject.partition(":")
    node = change.state.nodes.get(name)
    job = change.state.jobs.get(name) if subject == "job" else None
    if node is not None and subject == "node":
        _on_lease(change, node, event)
    if node is not None and subject == "notice":
        nodes.on_due(change, node, event)
    if job is not None:
        _on_job(change, job, event)


def _on_lease(change: Change, node: Node, event: DeadlinePassed) -> None:
    if node.is_gone or event.deadline_s < node.lease_until_s:
        return
    reason = f"lease ended: not heard for {change.config.lease_s:g} s"
    if node.awaited:
        reason = f"not back within {change.config.restart_lease_s:g} s after the manager started again"
    nodes.lose(change, node, reason)


def _on_job(change: Change, job: Job, event: DeadlinePassed) -> None:
    for name, host in sorted(job.hosts.items()):
        node = change.state.nodes[name]
        if host.gone_by_s == event.deadline_s and not node.is_gone:
            nodes.lose(change, node, f"did not end generation {host.generation} of job {job.job} in time")
    job = change.job(job.job)
    if job.is_over or job.phase is JobPhase.CANCELLING:
        return
    warmth.on_deadline(change, job, event)
    job = change.job(job.job)
    if job.keep_by_s == event.deadline_s:
        job = change.put_job(replace(job, keep_by_s=None))
    if job.run_limit_s == event.deadline_s:
        reason = f"max_run_time_s is over: {job.spec.max_run_time_s:g} s since its first step"
        generations.finish(change, job, JobPhase.FAILED, What.FAILED, reason)
    elif job.deadline_s == event.deadline_s:
        _on_phase(change, job)


def _on_phase(change: Change, job: Job) -> None:
    config, run = change.config, job.run
    match job.phase:
        case JobPhase.PROFILING if run is not None:
            message = f"no profile within {config.profile_timeout_s:g} s"
            failures.generation_failed(change, job, Cause.START_FAILED, message)
        case JobPhase.STARTING:
            failures.generation_failed(change, job, Cause.START_FAILED, _start_message(change, job))
        case JobPhase.DRAINING:
            reason = f"the drain was not done in time; {job.reason}"
            change.announce(What.MORPH, reason, job=job)
            job = generations.drain_failed(change, job)
            generations.begin(change, generations.end(change, job, reason), reason)
        case _:
            change.put_job(replace(job, asked_version=None, deadline_s=None))


def _start_message(change: Change, job: Job) -> str:
    run = job.run
    assert run is not None, "a job starts without a generation"
    done = run.active if run.is_activated else run.endpoints.keys()
    limit_s = change.config.activate_timeout_s if run.is_activated else change.config.prepare_timeout_s
    missing = [r for r in run.ranks if r not in done]
    where = ", ".join(f"{r} on {run.plan.placement[r].node}" for r in missing)
    state = "active" if run.is_activated else "prepared"
    return f"ranks not {state} within {limit_s:g} s: {where}"
