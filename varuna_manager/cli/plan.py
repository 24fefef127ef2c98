"""`varuna plan`, and how a plan and its reasons look."""

from pathlib import Path
from typing import TYPE_CHECKING

import click
from rich.console import Group, RenderableType

from varuna_manager.cli.connect import connect
from varuna_manager.cli.documents import plan_document
from varuna_manager.cli.objectives import losses_of, objective_lines
from varuna_manager.cli.options import Number, examples, json_option, manager_option
from varuna_manager.cli.output import console, print_json, seconds
from varuna_manager.cli.profile_file import write_profile
from varuna_manager.cli.tables import table
from varuna_manager.cli.text_files import write_text
from varuna_manager.client import PlanReport
from varuna_manager.planner.chrome_trace import chrome_trace
from varuna_manager.planner.explain import spread
from varuna_manager.planner.picture import picture as svg_picture
from varuna_manager.planner.recording import record
from varuna_manager.planner.request import Explanation
from varuna_runtime.spec.amounts import size
from varuna_runtime.spec.batches import num_micro_batches
from varuna_runtime.spec.job import Objective
from varuna_runtime.spec.layout import Infeasible, Plan

if TYPE_CHECKING:
    from varuna_manager.planner.request import StageLine


RECORDING = click.Path(dir_okay=False, path_type=Path)
FILE = click.Path(dir_okay=False, writable=True, path_type=Path)


@click.command(
    epilog=examples(
        "varuna plan gpt",
        "varuna plan gpt --picture step.svg",
        "varuna plan gpt --objective cost",
        "varuna plan gpt --objective progress --outlook-from spot.csv",
    )
)
@click.argument("job")
@click.option(
    "--objective",
    type=click.Choice([one.value for one in Objective]),
    help="Plan anew for the nodes that are there now: most samples per second, per dollar, "
    "or while nodes are lost. Changes nothing.",
)
@click.option(
    "--loss-rate",
    type=Number(min=0),
    metavar="LOSSES",
    help="Of progress: losses of one node in an hour; default: as the manager has seen.",
)
@click.option("--outlook-from", type=RECORDING, help="Of progress: losses as in this recording of a pool.")
@click.option("--trace", type=FILE, help="Write the predicted step for Perfetto or chrome://tracing.")
@click.option("--picture", type=FILE, help="Write the predicted step as an SVG.")
@click.option("--save-profile", type=FILE, help="Write the profile that its next plan goes by.")
@json_option
@manager_option
def plan(
    job: str,
    *,
    objective: str | None,
    loss_rate: float | None,
    outlook_from: Path | None,
    trace: Path | None,
    picture: Path | None,
    save_profile: Path | None,
    as_json: bool,
    manager: str | None,
) -> int:
    """Show the plan of a job and why it was chosen."""
    by = Objective(objective) if objective else None
    losses = losses_of(by, loss_rate, outlook_from)
    with connect(manager) as client:
        report = client.plan(
            client.job(job).job, objective=by, losses=losses, with_profile=save_profile is not None
        )
    if trace or picture:
        draw(report, trace, picture)
    if save_profile is not None:
        _save(report, save_profile)
    return show(report, as_json=as_json)


def _save(report: PlanReport, path: Path) -> None:
    if report.profile is None:
        click.echo("no profile to write: the manager has none of this job", err=True)
    else:
        write_profile(path, report.profile)


def draw(report: PlanReport, trace: Path | None, picture: Path | None) -> None:
    """Write the pictures of a plan's step; without a plan, or its times, there is nothing to draw."""
    made, why = report.outcome, report.explanation
    if isinstance(made, Infeasible) or why is None or why.timing is None:
        click.echo("nothing to draw: the manager gave no plan with its times", err=True)
        return
    step = record(why.timing, made.predicted_step_s)
    if trace is not None:
        write_text(trace, "trace", chrome_trace(step))
    if picture is not None:
        title = f"{made.layout}, {made.schedule}: predicted step {seconds(made.predicted_step_s)}"
        write_text(picture, "picture", svg_picture(step, title))


def show(report: PlanReport, *, as_json: bool) -> int:
    """Print a plan, or why there is none, and return the exit code."""
    if as_json:
        print_json(plan_document(report))
    elif isinstance(report.outcome, Infeasible):
        change = f"; {report.outcome.change}" if report.outcome.change else ""
        click.echo(f"no plan: {report.outcome.reason}{change}", err=True)
    else:
        console().print(_plan_view(report.outcome, report.explanation))
    return int(isinstance(report.outcome, Infeasible))


def _plan_view(made: Plan, why: Explanation | None) -> RenderableType:
    batch = made.batch
    num_micro = num_micro_batches(batch.batch_size, batch.micro_batch_size)
    parts: list[RenderableType] = [
        f"layout {made.layout} (stages x replicas), schedule {made.schedule}, "
        f"batch {batch.batch_size} as {num_micro} micro-batches of {batch.micro_batch_size}, "
        f"{batch.virtual_replicas} virtual replicas",
        f"predicted step: {seconds(made.predicted_step_s)}{_gap(made, why)}",
        *objective_lines(why),
        "",
        _stage_table(made, why),
        "",
        _placement_table(made),
    ]
    if why is not None:
        parts += _reasons(why)
    return Group(*parts)


def _gap(made: Plan, why: Explanation | None) -> str:
    if why is None or why.lower_bound_s <= 0:
        return ""
    gap = 100 * (made.predicted_step_s / why.lower_bound_s - 1)
    bound = seconds(why.lower_bound_s)
    return (
        f", {gap:.1f}% above the lower bound of {bound}\n"
        f"a slot idles {100 * why.bubble_share:.0f}% of it; "
        f"without the network it would be {100 * why.network_share:.0f}% shorter{_spread(why)}"
    )


def _spread(why: Explanation) -> str:
    found = spread(why)
    if found is None:
        return ""
    median, late = seconds(found.p50_s), seconds(found.p95_s)
    return f"\nas the profile's times vary, half of the steps take up to {median}, 95% up to {late}"


def _stage_table(made: Plan, why: Explanation | None) -> RenderableType:
    if why is None:
        rows = [
            (number, f"{stage.first}..{stage.last - 1}", "yes" if stage.recompute else "no")
            for number, stage in enumerate(made.stages)
        ]
        return table((">STAGE", "SEGMENTS", "RECOMPUTE"), rows)
    columns = (">STAGE", "SEGMENTS", ">FORWARD", ">BACKWARD", ">MEMORY", "RECOMPUTE")
    return table(columns, [_stage_row(line) for line in why.stages])


def _stage_row(line: "StageLine") -> tuple[object, ...]:
    forward, backward = seconds(line.forward_s), seconds(line.backward_s)
    recompute = "yes" if line.recompute else "no"
    return line.stage, f"{line.first}..{line.last - 1}", forward, backward, size(line.memory_bytes), recompute


def _placement_table(made: Plan) -> RenderableType:
    rows = [
        (rank, made.layout.stage_of(rank), made.layout.replica_of(rank), f"{slot.node}:{slot.index}")
        for rank, slot in enumerate(made.placement)
    ]
    return table((">RANK", ">STAGE", ">REPLICA", "SLOT"), rows)


def _reasons(why: Explanation) -> list[RenderableType]:
    parts: list[RenderableType] = []
    if why.rivals:
        columns = ("RIVAL", "SCHEDULE", ">MICRO-BATCH", ">STEP", "WHY NOT")
        rows = [
            (r.layout, r.schedule, r.micro_batch_size, seconds(r.predicted_step_s), r.reason)
            for r in why.rivals
        ]
        parts += ["", table(columns, rows)]
    if why.slow_nodes:
        parts += ["", f"slow nodes: {'; '.join(why.slow_nodes)}"]
    if why.spare_nodes:
        reason = f" ({why.spare_reason})" if why.spare_reason else ""
        parts += ["", f"spare nodes: {', '.join(why.spare_nodes)}{reason}"]
    if why.moved_bytes is not None:
        there = f"{size(why.moved_bytes)} of {size(why.needed_bytes)} of state move to another node"
        parts += ["", f"to move: {there}; the rest is used where it is"]
    return [*parts, "", f"from the profile: {why.profile_source}"]
