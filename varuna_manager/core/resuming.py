"""From which step a generation goes on: the newest version that all of its ranks can load."""

from dataclasses import replace

from varuna_manager.core import copies, failures, generations, policy
from varuna_manager.core.change import Change
from varuna_manager.core.state import Job, Run
from varuna_manager.core.words import What, counted
from varuna_runtime.spec.copies import Version, newest_common
from varuna_runtime.spec.generation import Cause, GenerationKind


def resume(change: Change, job: Job, run: Run) -> None:
    """Activate a TRAIN generation whose ranks are all prepared; without a common version it fails."""
    found = copies.durable_step(run.loadable)
    if found != job.passed_over:  # some ranks can read their part of it
        job = with_durable(change, job, found)
    version = newest_common(run.loadable.values())
    if version is None:
        _failed(change, job, f"no state that every rank can load: {copies.offered(run.loadable)}")
        return
    is_doubtful = job.failed_starts >= generations.DOUBTFUL_STARTS
    if version.step < (job.durable_step or 0) > (run.resume_step or 0) and not is_doubtful:
        _failed(change, job, f"step {job.durable_step} is durable, of which not all ranks knew")
        return
    if job.durable_step and version.step == 0:
        _failed(change, job, f"the store has lost step {job.durable_step}, which was durable")
        return
    if version.generation and version.step < (job.durable_step or 0) and not _has_seen_store(run):
        _failed(change, job, f"step {job.durable_step} is durable, and the store cannot be read")
        return
    replayed = max(0, job.reached - version.step)
    if replayed:
        least = "" if job.is_reached_exact else "at least "
        left = f"step {job.reached} was reached, the newest that is left is {copies.worded(version)}"
        change.announce(What.REPLAYED, f"{least}{replayed_steps(replayed)}: {left}", job=job)
    job = _without_passed_over(job, run, version)
    job = progressed(job, version.step)
    job = copies.activated(change.state, replace(job, is_reached_exact=False), run)
    activate(change, job, replace(run, resume=version, replayed=replayed))


def _without_passed_over(job: Job, run: Run, version: Version) -> Job:
    """Return the job with a durable step that can be loaded, where the ranks had to go behind it.

    Else copies that are older than what is damaged would be passed over as well.
    """
    if version.step >= (job.durable_step or 0):
        return job
    stored = ([v for v in offered if not v.generation] for offered in run.loadable.values())
    sound = newest_common(stored)
    if sound is None:
        return job
    passed_over = job.durable_step or 0
    return replace(job, durable_step=min(sound.step, passed_over), durable_s=None, passed_over=passed_over)


def _has_seen_store(run: Run) -> bool:
    return any(not version.generation for offered in run.loadable.values() for version in offered)


def _failed(change: Change, job: Job, message: str) -> None:
    failures.generation_failed(change, job, Cause.START_FAILED, message)


def replayed_steps(number: int) -> str:
    """Return in words that so many steps are trained again."""
    return f"{counted(number, 'committed step')} {'is' if number == 1 else 'are'} replayed"


def activate(change: Change, job: Job, run: Run) -> None:
    """Send Activate to every member."""
    run = replace(run, is_activated=True)
    deadline_s = (
        change.at_s + change.config.activate_timeout_s if run.kind is GenerationKind.TRAIN else job.deadline_s
    )
    job = change.put_job(replace(job, run=run, deadline_s=deadline_s))
    for node in sorted(run.members):
        generations.send_activate(change, job, run, node)


def with_durable(change: Change, job: Job, step: int) -> Job:
    """Store the job with a newer durable step."""
    if step <= (job.durable_step or 0):
        return change.put_job(job)
    job = policy.with_progress(job)
    return change.put_job(
        replace(job, durable_step=step, durable_s=change.at_s, reached=max(job.reached, step))
    )


def progressed(job: Job, step: int) -> Job:
    """Return the job with word of `step` committed steps that are not lost."""
    return replace(policy.with_progress(job), reached=step) if step > job.reached else job
