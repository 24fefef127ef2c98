"""`varuna checkpoint export` and `import`: the way of weights out of a job and into one."""

from pathlib import Path

import click

from varuna_manager.cli.checkpoint_import import import_weights
from varuna_manager.cli.checkpoint_place import place_of
from varuna_manager.cli.checkpoint_source import Source, wanted_step
from varuna_manager.cli.connect import connect
from varuna_manager.cli.job_on_disk import JobOnDisk, read_job
from varuna_manager.cli.output import print_json
from varuna_manager.core.words import counted
from varuna_runtime.checkpoint.export import export as export_files
from varuna_runtime.checkpoint.export import optimizer_state, weights
from varuna_runtime.spec.amounts import size
from varuna_runtime.spec.errors import InvalidInput


def export(
    job: str,
    *,
    step: int | None,
    path: Path,
    kind: str,
    weights_only: bool,
    store: str | None,
    manager: str | None,
) -> None:
    """Write a step as files that other tools read."""
    is_free = not path.exists() or (kind != "torch" and path.is_dir() and not any(path.iterdir()))
    if not is_free:
        raise InvalidInput(f"{path} is there already; name a new {'folder' if kind != 'torch' else 'file'}")
    place = place_of(job, store, manager)
    manifest = wanted_step(place, step)
    kinds = {"model": weights(manifest)}
    if not weights_only:
        kinds["optimizer"] = optimizer_state(manifest)
    try:
        if kind == "safetensors":
            export_files(place.store, manifest, path, {stem: kept for stem, kept in kinds.items() if kept})
        else:
            from varuna_manager.cli.checkpoint_torch import write_torch

            write_torch(place.store, manifest, path, kinds)
    except OSError as err:  # no room, no such place, no right to write there
        raise InvalidInput(f"{path} cannot be written: {err}") from err
    files = [path] if path.is_file() else sorted(path.iterdir())
    written = size(sum(file.stat().st_size for file in files))
    click.echo(f"step {manifest.step} of {place.job}: {counted(len(files), 'file')}, {written}, in {path}")


def import_(path: Path, *, job_file: Path, store: str | None, as_json: bool, manager: str | None) -> int:
    """Make the checkpoint that a new job starts from."""
    job = read_job(job_file)
    if not isinstance(job, JobOnDisk):
        for mistake in job:
            click.echo(str(mistake), err=True)
        return 1
    url = store or job.spec.checkpoint.store or _managers_store(manager)
    made = import_weights(job, Source(path=path, title=str(path)), url)
    for warning in made.measured.warnings:
        click.echo(f"note: {warning}", err=True)
    if as_json:
        print_json({"job": made.job, "store": url})
        return 0
    click.echo(made.job)
    click.echo(f"start it with: varuna submit {job_file} --id {made.job}", err=True)
    return 0


def _managers_store(manager: str | None) -> str:
    with connect(manager) as client:
        return client.storage().url
