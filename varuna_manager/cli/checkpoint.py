"""`varuna checkpoint ...`: what is durable, whether it is sound, and its way in and out."""

from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click

from varuna_manager import clock
from varuna_manager.cli import checkpoint_view
from varuna_manager.cli.checkpoint_import import import_weights
from varuna_manager.cli.checkpoint_place import Place, opened, place_of
from varuna_manager.cli.connect import connect
from varuna_manager.cli.job_on_disk import JobOnDisk, read_job
from varuna_manager.cli.options import examples, json_option, manager_option
from varuna_manager.cli.output import console, print_json
from varuna_manager.core.words import counted
from varuna_runtime.checkpoint import manifests, newest_complete, prune, retention, survey
from varuna_runtime.checkpoint.export import export as export_files
from varuna_runtime.checkpoint.export import optimizer_state, weights
from varuna_runtime.spec.amounts import size
from varuna_runtime.spec.errors import CheckpointRefused, InvalidInput
from varuna_runtime.spec.manifest import Manifest

Command = Callable[..., Any]
_LS = ("varuna checkpoint ls gpt", "varuna checkpoint ls gpt-3f6c01 --store s3://bucket/varuna")


def store_option(command: Command) -> Command:
    """Add `--store`."""
    return click.option(
        "--store", metavar="URL", help="The store itself; JOB is then an id, and no manager is needed."
    )(command)


def step_option(command: Command) -> Command:
    """Add `--step`."""
    return click.option("--step", type=click.IntRange(min=0), help="Default: the newest that is complete.")(
        command
    )


@click.group(epilog=examples("varuna checkpoint ls gpt", "varuna checkpoint export gpt --to gpt2-trained"))
def checkpoint() -> None:
    """Show, verify, prune, export and import checkpoints."""


@checkpoint.command(epilog=examples(*_LS))
@click.argument("job", required=False)
@store_option
@json_option
@manager_option
def ls(job: str | None, *, store: str | None, as_json: bool, manager: str | None) -> None:
    """Show the steps that are in the store, newest first.

    JOB is an id, or a name, which means the newest job of that name. A step is complete if a job could go on
    from it as far as its manifest and the sizes tell; `verify` reads every byte.
    """
    if job is None:
        if store is None:
            raise click.UsageError("give a JOB, or --store URL for the jobs that have checkpoints there")
        jobs = survey.jobs_with_checkpoints(opened(store))
        if as_json:
            print_json(list(jobs))
        else:
            click.echo("\n".join(jobs) or f"no checkpoints in {store}")
        return
    place = place_of(job, store, manager)
    found = survey.survey(place.store, place.job)
    if as_json:
        print_json([asdict(each) | {"is_complete": each.is_complete} for each in found])
    elif not found:
        click.echo(f"no checkpoints of {place.job} in {place.url}")
    else:
        console().print(checkpoint_view.steps(found, clock.wall_s()))
        click.echo(checkpoint_view.summary(found, clock.wall_s()), err=True)


@checkpoint.command(
    epilog=examples("varuna checkpoint verify gpt", "varuna checkpoint verify gpt --step 1200")
)
@click.argument("job")
@click.option("--step", type=click.IntRange(min=0), help="Default: the newest that has a manifest.")
@store_option
@manager_option
def verify(job: str, *, step: int | None, store: str | None, manager: str | None) -> int:
    """Read every byte of a step and compare checksums.

    Exit code 1 if it is damaged; the first bad object is named, and the newest step that is sound.
    """
    place = place_of(job, store, manager)
    wanted = step if step is not None else _newest_committed(place)
    try:
        manifest = manifests.read_manifest(place.store, place.job, wanted)
        manifests.check_shards(place.store, manifest)
    except CheckpointRefused as err:
        click.echo(f"step {wanted} is damaged: {err}")
        if step is None:
            sound = newest_complete(place.store, place.job, verify=True)
            click.echo(f"the newest sound step is {sound.step}" if sound else "no step is sound")
        return 1
    read = size(sum(entry.num_bytes for entry in manifest.shards))
    click.echo(f"step {wanted} is sound: {counted(len(manifest.shards), 'shard')}, {read}")
    return 0


@checkpoint.command("prune", epilog=examples("varuna checkpoint prune gpt --keep 2 --dry-run"))
@click.argument("job")
@click.option(
    "--keep", type=click.IntRange(min=1), required=True, metavar="N", help="How many steps to keep."
)
@click.option("--dry-run", is_flag=True, help="Show what would go; delete nothing.")
@store_option
@json_option
@manager_option
def prune_(
    job: str, *, keep: int, dry_run: bool, store: str | None, as_json: bool, manager: str | None
) -> None:
    """Delete the steps that the newest N complete ones do not need.

    What is newer than the newest complete step stays: a save may be under way. The bytes of that step are
    read first; if it is damaged, nothing is deleted.
    """
    place = place_of(job, store, manager)
    newest = newest_complete(place.store, place.job, verify=False)
    if newest is None:
        raise CheckpointRefused(f"{place.job} has no complete step, so that nothing is deleted")
    order = {"keep": keep, "generation": newest.generation, "up_to": newest.step}
    sizes = place.store.sizes(manifests.job_prefix(place.job))
    if dry_run:
        keys = retention.doomed(place.store, place.job, **order)
    else:
        manifests.check_shards(place.store, newest)
        keys = prune(place.store, place.job, **order)
    if as_json:
        print_json({"deleted": list(keys), "is_dry_run": dry_run})
        return
    for line in checkpoint_view.pruned(keys, sizes):
        click.echo(line)
    freed = size(sum(sizes.get(key, 0) for key in keys))
    click.echo(f"{freed} {'would be' if dry_run else 'are'} free; step {newest.step} is the newest")


@checkpoint.command(
    epilog=examples(
        "varuna checkpoint export gpt --to gpt2-trained",
        "varuna checkpoint export gpt --to gpt.pt --format torch --with-optimizer",
    )
)
@click.argument("job")
@step_option
@click.option(
    "--to", "path", type=click.Path(path_type=Path), required=True, help="A folder; a file for torch."
)
@click.option(
    "--format", "kind", type=click.Choice(["safetensors", "torch"]), default="safetensors", show_default=True
)
@click.option("--weights-only/--with-optimizer", default=True, help="Default: weights only.")
@store_option
@manager_option
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
    """Write a step as files that other tools read.

    `safetensors`: a folder as Hugging Face's `from_pretrained` takes it. `torch`: one file for `torch.load`,
    with `model`, `optimizer` and `step`. Every byte is compared with its checksum on the way.
    """
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise InvalidInput(f"{path} is there already; name a new {'folder' if kind != 'torch' else 'file'}")
    place = place_of(job, store, manager)
    manifest = _wanted(place, step)
    kinds = {"model": weights(manifest)}
    if not weights_only:
        kinds["optimizer"] = optimizer_state(manifest)
    if kind == "safetensors":
        export_files(place.store, manifest, path, {stem: kept for stem, kept in kinds.items() if kept})
    else:
        from varuna_manager.cli.checkpoint_torch import write_torch

        write_torch(place.store, manifest, path, kinds)
    files = [path] if path.is_file() else sorted(path.iterdir())
    written = size(sum(file.stat().st_size for file in files))
    click.echo(f"step {manifest.step} of {place.job}: {counted(len(files), 'file')}, {written}, in {path}")


@checkpoint.command(
    "import", epilog=examples("varuna checkpoint import gpt2.safetensors --job-file job.yaml")
)
@click.argument("path", type=click.Path(path_type=Path))
@click.option("--job-file", type=click.Path(path_type=Path), required=True, help="Of the job to be.")
@click.option("--store", metavar="URL", help="Default: the store of the job file, else the manager's.")
@json_option
@manager_option
def import_(path: Path, *, job_file: Path, store: str | None, as_json: bool, manager: str | None) -> int:
    """Make the checkpoint that a new job starts from.

    PATH is safetensors (a file, a folder or an index) or a file of `torch.save` with a state dict. Prints the
    id to submit the job with; `varuna submit --from PATH` does both.
    """
    job = read_job(job_file)
    if not isinstance(job, JobOnDisk):
        for mistake in job:
            click.echo(str(mistake), err=True)
        return 1
    url = store or job.spec.checkpoint.store or _managers_store(manager)
    made = import_weights(job, path, url)
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


def _newest_committed(place: Place) -> int:
    steps = manifests.steps_listed(place.job, place.store.list(manifests.job_prefix(place.job)))
    if not steps:
        raise CheckpointRefused(f"no checkpoints of {place.job} in {place.url}")
    return steps[-1]


def _wanted(place: Place, step: int | None) -> Manifest:
    if step is not None:
        return manifests.read_manifest(place.store, place.job, step)
    found = manifests.scan(place.store, place.job, verify=False)
    if found.manifest is None:
        why = "; ".join(refusal.reason for refusal in found.refusals) or f"there is none in {place.url}"
        raise CheckpointRefused(f"no checkpoint of {place.job} can be read: {why}")
    for refusal in found.refusals:
        click.echo(f"note: step {refusal.step} is passed over: {refusal.reason}", err=True)
    return found.manifest
