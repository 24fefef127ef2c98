"""What jobs left in the store that ended while no manager listened; looked at once, at the start."""

import asyncio

import structlog

from varuna_manager.clock import Clock
from varuna_manager.consumer import Consumer
from varuna_manager.core.events import RankFinished
from varuna_manager.core.state import Job
from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import InvalidInput, ObjectMissing, StoreError
from varuna_runtime.spec.generation import GenerationKind
from varuna_runtime.spec.manifest import Ending, ending_key
from varuna_runtime.store import open_store

_WITHIN_S = 20.0
_log = structlog.get_logger()


async def report_endings(consumer: Consumer, store_url: str, clock: Clock) -> None:
    """Tell the core of open jobs whose last step was done, as their ranks would if they were still there.

    A store that does not answer in time is no reason not to start: then the end is trained again.
    """
    for job in tuple(consumer.state.iter_open()):
        run = job.run
        if run is None or run.kind is not GenerationKind.TRAIN:
            continue
        ending = await _found(job, job.spec.checkpoint.store or store_url)
        if ending is None or ending.generation != run.number:
            continue
        for rank in sorted(run.ranks):
            await consumer.post(
                RankFinished(
                    at_s=clock.now_s(),
                    job=job.job,
                    generation=run.number,
                    rank=rank,
                    step=ending.step,
                    weights_sha256=ending.weights_sha256 if rank == 0 else "",
                )
            )


async def _found(job: Job, store_url: str) -> Ending | None:
    try:
        async with asyncio.timeout(_WITHIN_S):
            return await asyncio.to_thread(ending_of, job.job, store_url)
    except (StoreError, InvalidInput, TimeoutError) as err:
        _log.warning(
            "cannot tell whether the job has ended", job=job.job, why=str(err) or "no answer in time"
        )
        return None


def ending_of(job: str, store_url: str) -> Ending | None:
    """Return what the job's last rank 0 left, if anything; StoreError, InvalidInput if it is damaged."""
    try:
        return canonical.loads(Ending, open_store(store_url).get(ending_key(job)))
    except ObjectMissing:
        return None
