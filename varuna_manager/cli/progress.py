"""One line for a job's progress and one for an event; pure text."""

from varuna_manager.cli.output import clock, seconds
from varuna_manager.cli.plain import plain
from varuna_manager.client import EventRecord, JobStatus
from varuna_manager.core.phases import JobPhase
from varuna_manager.core.words import counted


def progress_line(job: JobStatus) -> str:
    """Return where the job is: step, loss, speed, layout, generation and time left."""
    parts = [job.state]
    if job.num_steps:
        parts.append(f"step {job.step}/{job.num_steps} ({100 * job.step // job.num_steps}%)")
    if job.step:
        parts.append(f"loss {job.loss:.4f}")
    if not job.is_over and job.samples_per_s > 0:
        parts.append(f"{job.samples_per_s:.1f} samples/s")
    if job.layout and not job.is_over:
        parts.append(f"layout {job.layout} on {counted(job.nodes, 'node')}")
    if job.generation:
        parts.append(f"generation {job.generation}")
    if not job.is_over and job.eta_s >= 0:
        parts.append(f"ETA {seconds(job.eta_s)}")
    if reason := shown_reason(job):
        parts.append(reason)
    return plain("  ".join(parts))


def shown_reason(job: JobStatus) -> str:
    """Return why the job is in its state, where the state does not speak for itself."""
    return "" if job.state in (JobPhase.RUNNING, JobPhase.SUCCEEDED) else job.reason


def full_reason(job: JobStatus) -> str:
    """Return why the job is in its state, of one that runs also who is soon to leave it."""
    return "" if job.has_succeeded else job.reason


def event_line(event: EventRecord, *, with_job: bool = False) -> str:
    """Return what happened as `time  subject  what  why  (who)`."""
    subject = [event.job] if with_job and event.job else []
    subject += [f"g{event.generation}"] if event.generation else []
    subject += [event.node] if event.node else []
    who = f"  (by {event.who})" if event.who not in ("", "manager") else ""
    middle = f"{' '.join(subject)}  " if subject else ""
    return plain(f"{clock(event.at)}  {middle}{event.what}: {event.why}{who}")
