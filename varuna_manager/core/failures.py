"""Failed generations: which cause counts, what is tried again, when a job is given up."""

from dataclasses import replace

from varuna_manager.core import departures, generations, policy
from varuna_manager.core.change import Change
from varuna_manager.core.events import RankFailed
from varuna_manager.core.phases import JobPhase
from varuna_manager.core.state import Job, Run
from varuna_manager.core.words import What
from varuna_runtime.spec.generation import Cause

_KEEPS_REASON = frozenset({JobPhase.CANCELLING, JobPhase.PARKED})


def rank_failed(change: Change, job: Job, event: RankFailed) -> None:
    """A rank of the current generation ended early: the generation is over, only its first cause counts."""
    run = job.run
    if run is None or event.rank in run.finished or event.rank in run.drained:
        return
    first = event.first_rank if event.first_rank in run.ranks else event.rank
    where = run.plan.placement[first].node
    message, blamed = f"rank {first} on {where}: {event.message or event.cause}", where
    peer = event.peer_rank if event.cause is Cause.PEER_LOST else None
    if peer is not None and peer in run.ranks:
        blamed = run.plan.placement[peer].node
        message = f"rank {peer} on {blamed} is gone, as seen from rank {first} on {where}"
    change.announce(What.RANK_FAILED, f"{event.cause}: {message}", who=blamed, job=job, node=blamed)
    away = _away(change, job, run, where)
    if away and event.cause is not Cause.USER_ERROR:
        reason = f"PREEMPTED: {away} ({event.cause} of {message})"
        change.announce(What.MORPH, reason, job=job)
        generations.begin(change, generations.end(change, job, reason), reason)
        return
    generation_failed(change, job, event.cause, message)


def generation_failed(change: Change, job: Job, cause: Cause, message: str) -> None:
    """Count the failure and try again, with a back-off from the second on, or give the job up."""
    is_open = cause is Cause.PEER_LOST
    job = replace(
        job,
        fruitless=job.fruitless + 1,
        failed_starts=job.failed_starts + (cause is Cause.START_FAILED),
        first_cause=job.first_cause or f"{cause}: {message}",
        open_generation=job.generation if is_open else 0,
    )
    if cause in policy.COUNTED:
        job = replace(job, failures=policy.charged(job.failures, cause))
    if _gave_up(change, job, f"{cause}: {message}"):
        return
    delay_s = policy.backoff_s(
        change.config, job.fruitless - 1
    )  # a first one, like a loss, is made good at once
    reason = f"{cause}: {message}"
    job = generations.begin(change, generations.end(change, job, reason), reason, delay_s=delay_s)
    change.announce(What.RETRY, f"in {delay_s:g} s after {reason}", job=job)


def late_cause(change: Change, job: Job, event: RankFailed) -> None:
    """The root cause of a generation that collateral had already ended: count it, disturb nothing else."""
    message = f"{event.cause}: rank {event.first_rank}: {event.message or event.cause}"
    first_cause = message if job.fruitless <= 1 else job.first_cause
    job = change.put_job(
        replace(
            job,
            open_generation=0,
            first_cause=first_cause,
            failures=policy.charged(job.failures, event.cause),
        )
    )
    change.announce(What.RANK_FAILED, message, job=job)
    _gave_up(change, job, message)


def close_cause(job: Job, node: str, why: str) -> Job:
    """Return the job with the loss of `node` taken as the root cause of a generation it was a part of."""
    host = job.hosts.get(node)
    if host is None or not job.open_generation or host.generation != job.open_generation:
        return job
    fruitless = max(0, job.fruitless - 1)
    return replace(
        job,
        open_generation=0,
        fruitless=fruitless,
        first_cause=job.first_cause if fruitless else "",
        reason=job.reason if job.phase in _KEEPS_REASON else f"PREEMPTED: lost {node} ({why})",
    )


def _gave_up(change: Change, job: Job, reason: str) -> bool:
    if not policy.is_exhausted(job) and job.fruitless <= change.config.fruitless_limit:
        return False
    if not policy.is_exhausted(job):
        reason = f"{job.fruitless} generations in a row without durable progress; first: {job.first_cause}"
    generations.finish(change, job, JobPhase.FAILED, What.FAILED, reason)
    return True


def _away(change: Change, job: Job, run: Run, where: str) -> str:
    """Return, in words, the members out of reach, else those that are leaving: the likely cause.

    One that leaves much later is the cause of nothing yet, unless the failure was on it.
    """
    nodes = change.state.nodes
    missing = [
        name
        for name, incarnation in sorted(run.members.items())
        if not nodes[name].is_connected or nodes[name].incarnation != incarnation
    ]
    if missing:
        return f"lost touch with {', '.join(missing)}"
    due = {node.node for node in departures.due(change.state, job, run, change.at_s)}
    leaving = [
        name
        for name in sorted(run.members)
        if not nodes[name].is_plannable
        and (job.phase is not JobPhase.RUNNING or name == where or name in due)
    ]
    return f"leaving: {', '.join(leaving)}" if leaving else ""
