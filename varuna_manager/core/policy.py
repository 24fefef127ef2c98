"""Judgements with numbers: retry budgets, back-off, whether a morph to a larger pool is worth it."""

from collections.abc import Mapping
from dataclasses import replace

from varuna_manager.core.config import CoreConfig
from varuna_manager.core.state import Job
from varuna_runtime.spec.batches import num_micro_batches
from varuna_runtime.spec.generation import Cause
from varuna_runtime.spec.job import Retries
from varuna_runtime.spec.layout import BatchShape, Layout, Plan, ScheduleKind, Slot, Stage
from varuna_runtime.spec.model import ModelRecord

COUNTED = frozenset({Cause.USER_ERROR, Cause.WORKER_CRASH, Cause.HANG, Cause.START_FAILED})
"""Causes with a budget of the job file; the others never end a job by themselves."""


def budget(retries: Retries, cause: Cause) -> int:
    """Return how many failures of that cause the job survives; a failed start counts as a crash."""
    match cause:
        case Cause.USER_ERROR:
            return retries.user_error
        case Cause.HANG:
            return retries.hang
        case _:
            return retries.worker_crash


def with_progress(job: Job) -> Job:
    """Return the job with its failures forgiven; retries of user errors are never given back."""
    kept: dict[Cause, int] = {c: n for c, n in job.failures.items() if c is Cause.USER_ERROR}
    return replace(job, failures=kept, fruitless=0, failed_starts=0, first_cause="")


def charged(failures: Mapping[Cause, int], cause: Cause) -> dict[Cause, int]:
    """Return the failures with one more of that cause; failed starts and crashes share one count."""
    account = Cause.WORKER_CRASH if cause is Cause.START_FAILED else cause
    return {**failures, account: failures.get(account, 0) + 1}


def is_exhausted(job: Job) -> bool:
    """Return True if some cause has used up its budget."""
    return any(count > budget(job.spec.retries, cause) for cause, count in job.failures.items())


def backoff_s(config: CoreConfig, fruitless: int) -> float:
    """Return the wait before a restart after that many failed generations without progress."""
    if fruitless < 1:
        return 0.0
    doublings = min(fruitless - 1, 32)
    return min(config.failure_backoff_cap_s, config.failure_backoff_s * float(2**doublings))


def smoothed_morph_s(job: Job, running_s: float) -> float | None:
    """Return what a morph of the job takes, with the one that ends now; without the wait of a back-off."""
    if job.halted_s is None or job.fruitless > 1:
        return job.morph_s
    took_s = running_s - job.halted_s
    return took_s if job.morph_s is None else (job.morph_s + took_s) / 2


def gain(current: Plan, larger: Plan) -> float:
    """Return the share of the present step time that the larger plan saves."""
    if current.predicted_step_s <= 0:
        return 0.0
    return 1.0 - larger.predicted_step_s / current.predicted_step_s


def profile_plan(model: ModelRecord, slots: tuple[Slot, ...], batch: BatchShape) -> Plan:
    """Return the plan of a PROFILE generation: the whole model on each of one or two slots."""
    replicas = min(len(slots), batch.virtual_replicas)
    return Plan(
        layout=Layout(stages=1, replicas=replicas),
        stages=(Stage(first=0, last=len(model.segments), recompute=False),),
        schedule=ScheduleKind.GPIPE,
        batch=batch,
        placement=slots[:replicas],
        predicted_step_s=0.0,
    )


def profile_batch(job: Job, replicas: int) -> BatchShape:
    """Return the batch shape a PROFILE generation is given; the real one is chosen by the first plan."""
    size, micro = job.spec.batch_size, job.spec.micro_batch_size
    micro_batch_size = 1 if micro == "auto" else min(micro, size)
    num_micro = num_micro_batches(size, micro_batch_size)
    return BatchShape(
        batch_size=size,
        micro_batch_size=micro_batch_size,
        virtual_replicas=min(replicas, num_micro),
    )
