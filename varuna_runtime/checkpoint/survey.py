"""What a store holds of a job's checkpoints, for people; reads manifests and listings (torch-free)."""

import re
from collections.abc import Mapping
from dataclasses import dataclass

from varuna_runtime.checkpoint.manifests import check_sizes, job_prefix, read_manifest, steps_listed
from varuna_runtime.spec.errors import CheckpointRefused
from varuna_runtime.spec.manifest import checkpoint_prefix
from varuna_runtime.store import Store

_STEP = re.compile(r".*/checkpoints/([0-9]{12,18})/.+")
_JOB = re.compile(r"jobs/([^/]+)/checkpoints/[0-9]{12,18}/.+")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepFound:
    """One step of which there are objects; it can be loaded if it has a generation and no refusal."""

    step: int
    generation: (
        int | None
    )  # that committed it; None: its save was not finished, or its manifest cannot be read
    num_bytes: int
    num_objects: int
    written_at_s: float  # of its manifest, or of its newest object
    is_committed: bool  # whether it has a manifest
    refusal: str  # why it cannot be loaded, as far as can be told without reading its shards; empty: it can

    @property
    def is_complete(self) -> bool:
        """Whether a job could go on from it."""
        return self.is_committed and not self.refusal


def survey(store: Store, job: str) -> tuple[StepFound, ...]:
    """Return every step of a job that has objects, newest first."""
    sizes, times = store.sizes(job_prefix(job)), store.written_at(job_prefix(job))
    steps = {int(match[1]) for key in sizes if (match := _STEP.fullmatch(key))}
    committed = set(steps_listed(job, sizes))
    return tuple(
        _found(store, job, step, sizes, times, is_committed=step in committed)
        for step in sorted(steps, reverse=True)
    )


def jobs_with_checkpoints(store: Store) -> tuple[str, ...]:
    """Return the ids of the jobs that have any object of a checkpoint."""
    found = {match[1] for key in store.list("jobs") if (match := _JOB.fullmatch(key))}
    return tuple(sorted(found))


def _found(
    store: Store,
    job: str,
    step: int,
    sizes: Mapping[str, int],
    times: Mapping[str, float],
    *,
    is_committed: bool,
) -> StepFound:
    prefix = f"{checkpoint_prefix(job, step)}/"
    keys = [key for key in sizes if key.startswith(prefix)]
    generation, refusal = None, ""
    if is_committed:
        try:
            manifest = read_manifest(store, job, step)
            generation = manifest.generation
            check_sizes(manifest, dict(sizes))
        except CheckpointRefused as err:
            refusal = str(err)
    manifests = [key for key in keys if key == f"{prefix}manifest.json"] if is_committed else keys
    return StepFound(
        step=step,
        generation=generation,
        num_bytes=sum(sizes[key] for key in keys),
        num_objects=len(keys),
        written_at_s=max((times[key] for key in manifests if key in times), default=0.0),
        is_committed=is_committed,
        refusal=refusal,
    )
