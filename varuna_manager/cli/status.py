"""`varuna status` and `varuna cancel`."""

import time
from collections.abc import Iterable

import click
from rich.console import RenderableType
from rich.live import Live

from varuna_manager.cli.connect import connect, user_name
from varuna_manager.cli.documents import job_document
from varuna_manager.cli.follow import follow
from varuna_manager.cli.options import examples, json_option, manager_option
from varuna_manager.cli.output import console, day, minute, print_json, seconds
from varuna_manager.cli.progress import full_reason, shown_reason
from varuna_manager.cli.tables import table
from varuna_manager.client import JobStatus
from varuna_manager.clock import wall_s
from varuna_manager.core.words import counted
from varuna_runtime.spec.errors import InvalidInput


@click.command(
    epilog=examples("varuna status", "varuna status gpt --watch", "varuna status gpt --json | jq .step")
)
@click.argument("job", required=False)
@click.option("--watch", is_flag=True, help="Keep showing it; with a JOB, until that is over.")
@json_option
@manager_option
def status(job: str | None, *, watch: bool, as_json: bool, manager: str | None) -> int:
    """Show the jobs, or one job.

    JOB is an id, or a name, which means the newest job of that name.
    """
    if watch and as_json:
        raise InvalidInput(
            "--watch and --json exclude each other; `varuna events --follow --json` streams JSON"
        )
    if watch:
        return follow(job, manager) if job else _watch_all(manager)
    with connect(manager) as client:
        found = (client.job(job),) if job else client.jobs()
    if as_json:
        documents = [job_document(each) for each in found]
        print_json(documents[0] if job else documents)
    else:
        console().print(_details(found[0], wall_s()) if job else _overview(found))
    return 0


@click.command(epilog=examples("varuna cancel gpt"))
@click.argument("job")
@manager_option
def cancel(job: str, *, manager: str | None) -> None:
    """End a job.

    What it has computed so far stays in its checkpoints.
    """
    with connect(manager) as client:
        found = client.job(job)
        state = client.cancel(found.job, user=user_name())
    click.echo(f"{found.job} is {state}")


def _watch_all(manager: str | None) -> int:
    with Live(console=console(), auto_refresh=False) as live:
        while True:
            with connect(manager) as client:
                live.update(_overview(client.jobs()), refresh=True)
            time.sleep(1.0)


def _overview(jobs: Iterable[JobStatus]) -> RenderableType:
    newest_first = sorted(jobs, key=lambda j: -j.submitted_at)
    if not newest_first:
        return "no jobs yet; `varuna submit job.yaml` starts one"
    columns = ("JOB", "STATE", ">STEP", ">LOSS", "LAYOUT", ">NODES", ">GEN", "SUBMITTED", "REASON")
    return table(columns, [_row(job) for job in newest_first])


def _row(job: JobStatus) -> tuple[object, ...]:
    loss = f"{job.loss:.4f}" if job.step else ""
    step = f"{job.step}/{job.num_steps}"
    return (
        job.job,
        job.state,
        step,
        loss,
        "" if job.is_over else job.layout,
        job.nodes or "",
        job.generation or "",
        minute(job.submitted_at),
        shown_reason(job),
    )


def _details(job: JobStatus, now_s: float) -> RenderableType:
    lines: list[tuple[str, object]] = [
        ("job", job.job),
        ("state", job.state),
        ("why", full_reason(job)),
        ("step", steps_text(job, now_s)),
        ("loss", f"{job.loss:.6f}" if job.step else ""),
        ("speed", f"{job.samples_per_s:.1f} samples/s" if job.samples_per_s > 0 else ""),
        ("time left", seconds(job.eta_s) if job.eta_s >= 0 and not job.is_over else ""),
        ("layout", f"{job.layout} on {counted(job.nodes, 'node')}" if job.layout and not job.is_over else ""),
        ("generation", f"{job.generation}, after {counted(job.morphs, 'morph')}" if job.generation else ""),
        ("submitted", f"{day(job.submitted_at)} by {job.user}"),
        ("ended", _ended(job)),
        ("weights", job.weights_sha256),
    ]
    return table(("", ""), [(name, value) for name, value in lines if value != ""])


def steps_text(job: JobStatus, now_s: float) -> str:
    """Return how many steps are committed, how many are in a checkpoint, and what a loss would cost."""
    parts = [f"{job.step} of {job.num_steps}"]
    if job.step and not job.has_succeeded:
        parts += [_durable(job, now_s), _recoverable(job)]
    if job.replayed_steps:
        parts.append(f"{counted(job.replayed_steps, 'step')} done again after a loss")
    return ", ".join(parts)


def _durable(job: JobStatus, now_s: float) -> str:
    age = f", {seconds(now_s - job.durable_at)} old" if job.durable_at > 0 and not job.is_over else ""
    return f"a checkpoint holds {job.durable_step}{age}" if job.durable_step else "no checkpoint holds any"


def _recoverable(job: JobStatus) -> str:
    behind = job.step - job.recoverable_step
    return (
        f"{counted(behind, 'step')} would be lost with a node" if behind else "no loss of one node costs any"
    )


def _ended(job: JobStatus) -> str:
    after = f", after {seconds(job.ended_at - job.submitted_at)}" if job.ended_at > 0 else ""
    return day(job.ended_at) + after
