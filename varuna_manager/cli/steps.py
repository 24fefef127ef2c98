"""`varuna steps`."""

import click

from varuna_manager.cli.connect import connect
from varuna_manager.cli.options import examples, json_option, manager_option
from varuna_manager.cli.output import console, print_json_line, seconds
from varuna_manager.cli.tables import table


@click.command(epilog=examples("varuna steps gpt", "varuna steps gpt --json | jq .loss"))
@click.argument("job")
@json_option
@manager_option
def steps(job: str, *, as_json: bool, manager: str | None) -> None:
    """Print the committed steps of a job with their loss."""
    with connect(manager) as client:
        found = client.steps(client.job(job).job)
    if as_json:
        for step in found:
            print_json_line(step)
        return
    columns = (">STEP", ">GENERATION", ">LOSS", ">SAMPLES", ">TIME", "LOSS, EVERY BIT")
    rows = [(s.step, s.generation, f"{s.loss:.6f}", s.samples, seconds(s.step_s), s.loss_hex) for s in found]
    console().print(table(columns, rows) if rows else "no committed steps yet")
