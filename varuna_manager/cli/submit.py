"""`varuna submit`: from a job file to a job, or to the plan it would get."""

import sys
import uuid
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import click

from varuna_manager.cli.checkpoint_import import check_imported, import_weights
from varuna_manager.cli.checkpoint_source import source_of
from varuna_manager.cli.connect import connect, is_served_here, patiently, user_name
from varuna_manager.cli.follow import follow as follow_job
from varuna_manager.cli.job_on_disk import JobOnDisk, model_mistakes, read_job, store_mistakes
from varuna_manager.cli.options import examples, follow_option, json_option, manager_option
from varuna_manager.cli.output import print_json
from varuna_manager.cli.plan import show
from varuna_manager.cli.profile_file import profile_for, profile_option
from varuna_manager.cli.scripts import Measured, ScriptRefused, measure, tell_detail
from varuna_manager.client import Client, PlanReport, Submission
from varuna_runtime.spec.errors import Conflict
from varuna_runtime.spec.mistakes import Mistake
from varuna_runtime.store.bundle import packed

RETRY_WITHIN_S = 60.0


@click.command(
    epilog=examples("varuna submit examples/gpt/job.yaml --follow", "varuna submit job.yaml --dry-run")
)
@click.argument("file", type=click.Path(path_type=Path))
@follow_option("Show the job until it is over; ctrl-C leaves it running.")
@click.option("--dry-run", is_flag=True, help="Show the plan for the present pool; start nothing.")
@click.option(
    "--from",
    "weights",
    metavar="PATH|JOB[@STEP]",
    help="Weights to start from: safetensors (file, folder, index), a state dict of torch.save, or a job's.",
)
@click.option("--id", "job_id", metavar="ID", help="Start from what `varuna checkpoint import` made for ID.")
@profile_option
@json_option
@manager_option
def submit(
    file: Path,
    *,
    follow: bool,
    dry_run: bool,
    weights: str | None,
    job_id: str | None,
    profile_file: Path | None,
    as_json: bool,
    manager: str | None,
) -> int:
    """Submit a job file.

    Prints the job's id. Everything is checked before anything starts: the file, what it names, and the
    script up to its call of varuna.train.
    """
    if profile_file is not None and not dry_run:
        raise click.UsageError("--profile is for --dry-run: a job that starts is measured on its nodes")
    if sum((dry_run, weights is not None, job_id is not None)) > 1:
        raise click.UsageError("--dry-run, --from and --id exclude each other")
    job = read_job(file)
    if not isinstance(job, JobOnDisk):
        return _refuse(job)
    with connect(manager) as client:
        client.nodes()  # a missing manager is told before the script is loaded
        if is_served_here(client.address) and (mistakes := store_mistakes(job.located)):
            return _refuse(mistakes)
        if weights is not None:
            with source_of(weights, manager) as source:
                made = import_weights(job, source, job.spec.checkpoint.store or client.storage().url)
            job_id, measured = made.job, made.measured
        else:
            measured = _measured(job, with_profile=False)
        if job_id is not None and weights is None:
            check_imported(job, job_id, measured, job.spec.checkpoint.store or client.storage().url)
        if mistakes := model_mistakes(job.located, measured.model):
            return _refuse(mistakes)
        for warning in measured.warnings:
            click.echo(f"note: {warning}", err=True)
        if dry_run:
            if profile_file is not None:
                measured = replace(measured, profile=profile_for(profile_file, measured.model))
            return show(_dry_run(client, job, measured), as_json=as_json)
    with packed(job.workdir) as (bundle, archive):
        patiently(lambda: _put(bundle.sha256, archive, manager), RETRY_WITHIN_S)
    submission = _submission(job, measured, bundle=bundle.sha256, secrets=job.secrets, job_id=job_id)
    name = patiently(lambda: _submitted(submission, manager), RETRY_WITHIN_S)
    if as_json:
        print_json({"job": name})
    else:
        click.echo(name)
    return follow_job(name, manager) if follow else 0


def _put(sha256: str, archive: Path, manager: str | None) -> None:
    with connect(manager) as client:
        client.put_bundle(sha256, archive)


def _submitted(submission: Submission, manager: str | None) -> str:
    """Submit; doing it again is safe, because the request's id gives the same job."""
    with connect(manager) as client:
        return client.submit(submission)


def _dry_run(client: Client, job: JobOnDisk, measured: Measured) -> PlanReport:
    """Plan with the given profile, or the one the nodes once measured, else with one of this machine."""
    with packed(job.workdir) as (bundle, _):
        sha256 = bundle.sha256
    try:
        return client.dry_run(_submission(job, measured, bundle=sha256, secrets={}))
    except Conflict:
        click.echo("measuring the model on this machine", err=True)
        return client.dry_run(_submission(job, _measured(job, with_profile=True), bundle=sha256, secrets={}))


def _measured(job: JobOnDisk, *, with_profile: bool) -> Measured:
    if sys.stderr.isatty():
        click.echo(f"running {job.spec.entrypoint} up to varuna.train, to learn its model ...", err=True)
    try:
        return measure(job.spec, job.workdir, with_profile=with_profile)
    except ScriptRefused as err:
        tell_detail(err)
        raise


def _submission(
    job: JobOnDisk,
    measured: Measured,
    *,
    bundle: str,
    secrets: Mapping[str, str],
    job_id: str | None = None,
) -> Submission:
    return Submission(
        spec=job.spec,
        model=measured.model,
        profile=measured.profile,
        bundle=bundle,
        user=user_name(),
        request_id=uuid.uuid4().hex,
        job=job_id or "",
        secrets=dict(secrets),
    )


def _refuse(mistakes: tuple[Mistake, ...]) -> int:
    for mistake in mistakes:
        click.echo(str(mistake), err=True)
    return 1
