"""Weights to start from: files, or a step of another job, taken out into files for as long as it takes."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import click

from varuna_manager.cli.checkpoint_place import Place, place_of
from varuna_manager.cli.checkpoint_view import within_step
from varuna_runtime.checkpoint import manifests
from varuna_runtime.checkpoint.export import export, weights
from varuna_runtime.spec.errors import CheckpointRefused, InvalidInput, NotFound
from varuna_runtime.spec.manifest import Manifest

_SHOWN = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Weights in files, and what the user calls them."""

    path: Path
    title: str


@contextmanager
def source_of(named: str, manager: str | None) -> Iterator[Source]:
    """Give the weights of a path, else of JOB or JOB@STEP; those need room for a temporary copy."""
    if Path(named).exists():
        yield Source(path=Path(named), title=named)
        return
    job, step = _job_and_step(named)
    try:
        place = place_of(job, None, manager)
    except NotFound as err:
        raise InvalidInput(f"--from {named}: no such file or folder of weights, and {err}") from err
    manifest = wanted_step(place, step)
    with tempfile.TemporaryDirectory(prefix="varuna-from-") as scratch:
        path = Path(scratch, "weights")
        try:
            export(place.store, manifest, path, {"model": weights(manifest)})
        except OSError as err:
            raise InvalidInput(f"no room for a copy of {named} in {scratch}: {err}") from err
        yield Source(path=path, title=f"{place.job}@{manifest.step}")


def wanted_step(place: Place, step: int | None) -> Manifest:
    """Return this step, or the newest complete one; CheckpointRefused says why there is none."""
    if step is not None:
        require_step(place, step)
        return manifests.read_manifest(place.store, place.job, step)
    found = manifests.scan(place.store, place.job, verify=False)
    if found.manifest is None:
        why = "; ".join(refusal.reason for refusal in found.refusals) or f"there is none in {place.url}"
        raise CheckpointRefused(f"no checkpoint of {place.job} can be read: {why}")
    for refusal in found.refusals:
        reason = within_step(refusal.reason)
        click.echo(f"note: step {refusal.step} is passed over: {reason}", err=True)
    return found.manifest


def require_step(place: Place, step: int) -> None:
    """Refuse (CheckpointRefused) a step without a manifest, and say which steps have one."""
    steps = steps_with_manifest(place)
    if step not in steps:
        more = "" if len(steps) <= _SHOWN else f"the newest {_SHOWN} of {len(steps)} steps are "
        known = ", ".join(map(str, steps[-_SHOWN:])) or "none"
        raise CheckpointRefused(f"{place.job} has no step {step} in {place.url}; it has: {more}{known}")


def steps_with_manifest(place: Place) -> tuple[int, ...]:
    """Return the steps that were made durable, ascending."""
    return manifests.steps_listed(place.job, place.store.list(manifests.job_prefix(place.job)))


def _job_and_step(named: str) -> tuple[str, int | None]:
    job, mark, step = named.partition("@")
    if "/" in named or not job or (mark and not step.isdecimal()):
        raise InvalidInput(f"--from {named}: no such file or folder of weights; a step of a job is JOB@STEP")
    return job, int(step) if mark else None
