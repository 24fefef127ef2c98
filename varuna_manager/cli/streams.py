"""`varuna logs` and `varuna events`: streams of lines."""

import sys

import click

from varuna_manager.cli.connect import connect
from varuna_manager.cli.options import examples, follow_option, json_option, manager_option
from varuna_manager.cli.output import print_json_line
from varuna_manager.cli.progress import event_line
from varuna_manager.client import LogChunk


@click.command(epilog=examples("varuna logs gpt -f", "varuna logs gpt --rank -1"))
@click.argument("job")
@follow_option("Go on until the job is over, across morphs.")
@click.option("--rank", type=int, help="Only this rank; -1 is the launcher and the setup command.")
@click.option("--generation", type=int, help="Only this generation.")
@manager_option
def logs(job: str, *, follow: bool, rank: int | None, generation: int | None, manager: str | None) -> None:
    """Print what the ranks of a job printed."""
    with connect(manager) as client:
        found = client.job(job)
        for chunk in client.logs(found.job, rank=rank, follow=follow):
            if generation in (None, chunk.generation):
                sys.stdout.buffer.write(_lines(chunk, with_prefix=rank is None))
                sys.stdout.buffer.flush()


@click.command(epilog=examples("varuna events gpt -f", "varuna events --json | jq -r .what"))
@click.argument("job", required=False)
@follow_option("Go on as events happen.")
@json_option
@manager_option
def events(job: str | None, *, follow: bool, as_json: bool, manager: str | None) -> None:
    """Print what happened, by whom and why."""
    with connect(manager) as client:
        name = client.job(job).job if job else ""
        for event in client.events(name, follow=follow):
            if as_json:
                print_json_line(event)
            else:
                click.echo(event_line(event, with_job=not job))
            sys.stdout.flush()


def _lines(chunk: LogChunk, *, with_prefix: bool) -> bytes:
    if not with_prefix:
        return chunk.data
    who = "launcher" if chunk.rank < 0 else f"rank {chunk.rank}"
    prefix = f"g{chunk.generation} {who} | ".encode()
    return b"".join(prefix + line for line in chunk.data.splitlines(keepends=True))
