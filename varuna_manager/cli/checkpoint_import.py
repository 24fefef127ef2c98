"""Weights in files become step 0 of a job that does not exist yet."""

import sys
from dataclasses import dataclass, replace

import click

from varuna_manager.cli.checkpoint_place import opened
from varuna_manager.cli.checkpoint_source import Source
from varuna_manager.cli.job_on_disk import JobOnDisk
from varuna_manager.cli.scripts import Measured, ScriptRefused, imported, tell_detail
from varuna_manager.secrecy import new_suffix
from varuna_runtime.checkpoint.manifests import read_manifest
from varuna_runtime.spec.errors import CheckpointRefused, InvalidInput
from varuna_runtime.spec.manifest import ImportOrder


@dataclass(frozen=True, slots=True, kw_only=True)
class Made:
    """A checkpoint, and the id of the job that is to start from it."""

    job: str
    measured: Measured


def import_weights(job: JobOnDisk, weights: Source, store_url: str) -> Made:
    """Put the weights into the store under a new id; they are compared with the script's model by name."""
    opened(store_url)
    made = f"{job.spec.name}-{new_suffix()}"
    if sys.stderr.isatty():
        click.echo(f"running {job.spec.entrypoint} up to varuna.train, to fit the weights ...", err=True)
    path = str(weights.path.resolve())
    order = ImportOrder(weights=path, store_url=store_url, job=made)
    try:
        measured = imported(job.spec, job.workdir, order)
    except ScriptRefused as err:
        tell_detail(err)
        raise ScriptRefused(str(err).replace(path, weights.title), err.detail) from err
    warnings = tuple(text.replace(path, weights.title) for text in measured.warnings)
    return Made(job=made, measured=replace(measured, warnings=warnings))


def check_imported(job: JobOnDisk, made: str, measured: Measured, store_url: str) -> None:
    """Refuse (CheckpointRefused, InvalidInput) an id without a step 0 of this very model."""
    if not made.startswith(f"{job.spec.name}-"):
        raise InvalidInput(
            f"--id: seen {made!r}, wanted one of {job.spec.name}, as `checkpoint import` told it"
        )
    manifest = read_manifest(opened(store_url), made, 0)
    if manifest.model_hash != measured.model.hash():
        raise CheckpointRefused(f"{made}: its checkpoint is of another model than the script has now")
