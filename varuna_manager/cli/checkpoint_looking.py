"""`varuna checkpoint ls`, `verify` and `prune`: what is durable, and whether it is sound."""

from dataclasses import asdict

import click

from varuna_manager import clock
from varuna_manager.cli import checkpoint_view
from varuna_manager.cli.checkpoint_place import Place, opened, place_of
from varuna_manager.cli.checkpoint_source import require_step, steps_with_manifest
from varuna_manager.cli.output import console, print_json
from varuna_manager.core.words import counted
from varuna_runtime.checkpoint import manifests, newest_complete, prune, retention, survey
from varuna_runtime.spec.amounts import size
from varuna_runtime.spec.errors import CheckpointRefused


def ls(job: str | None, *, store: str | None, as_json: bool, manager: str | None) -> None:
    """Show the steps that are in the store, newest first."""
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


def verify(job: str, *, step: int | None, store: str | None, manager: str | None) -> int:
    """Read every byte of a step and compare checksums."""
    place = place_of(job, store, manager)
    wanted = step if step is not None else _newest_committed(place)
    require_step(place, wanted)
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


def prune_(
    job: str, *, keep: int, dry_run: bool, store: str | None, as_json: bool, manager: str | None
) -> None:
    """Delete the steps that the newest N complete ones do not need."""
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
    click.echo(f"{freed} {'would be' if dry_run else 'were'} freed; step {newest.step} is the newest")


def _newest_committed(place: Place) -> int:
    steps = steps_with_manifest(place)
    if not steps:
        raise CheckpointRefused(f"no checkpoints of {place.job} in {place.url}")
    return steps[-1]
