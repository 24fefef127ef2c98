"""`varuna simulate`: what a recorded pool would do to a job."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import click

from varuna_manager.cli.job_on_disk import JobOnDisk, model_mistakes, read_job
from varuna_manager.cli.options import F, Number, as_bytes, as_seconds, examples, json_option
from varuna_manager.cli.output import console, print_json
from varuna_manager.cli.profile_file import read_profile
from varuna_manager.cli.recordings import read_recording
from varuna_manager.cli.replayed import document, view
from varuna_manager.cli.scripts import ScriptRefused, measure
from varuna_manager.cli.text_files import text_of, write_text
from varuna_manager.traces import Recording
from varuna_manager.whatif import (
    Comparison,
    Costs,
    Machines,
    Ours,
    Paper,
    Policy,
    Scenario,
    compare,
    lent,
)
from varuna_manager.whatif.plot import svg
from varuna_manager.whatif.policyfile import parse_policy
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.job import Objective
from varuna_runtime.spec.mistakes import Mistake
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.profile import Profile

_FILE = click.Path(path_type=Path, dir_okay=False)


def _duration(flag: str, name: str, default: str | None, help_text: str) -> Callable[[F], F]:
    return click.option(
        flag,
        name,
        callback=as_seconds,
        default=default,
        show_default=default is not None,
        metavar="DURATION",
        help=help_text,
    )


@click.command(
    epilog=examples(
        "varuna simulate --trace spot.csv --job job.yaml",
        "varuna simulate --trace spot.csv --job job.yaml --notice 2m --policy ours --plot spot.svg",
    )
)
@click.option("--trace", type=_FILE, required=True, help="Recording of a pool.")
@click.option("--job", type=_FILE, required=True, help="Job file.")
@click.option("--profile", type=_FILE, help="What its segments cost; without it they are measured here.")
@click.option(
    "--policy",
    default="ours,paper",
    show_default=True,
    metavar="LIST",
    help="Who decides, side by side: ours, paper, or files that describe a policy.",
)
@_duration("--from", "start_s", "0s", "Begin of the part to replay.")
@_duration("--to", "end_s", None, "Its end; beyond the recording, the nodes that are left stay.")
@_duration("--notice", "notice_s", "0s", "How long before its end a node is warned.")
@click.option("--slots", type=click.IntRange(min=1), default=1, show_default=True, help="Slots of a node.")
@click.option(
    "--memory", callback=as_bytes, default="16G", show_default=True, metavar="SIZE", help="Memory of a slot."
)
@click.option("--price", type=Number(min=0), help="Dollars per hour of a node.")
@click.option("--on-demand-price", type=Number(min=0), help="The same for a node that stays.")
@_duration("--morph", "morph_s", "2s", "From the order to start to the first step; policy ours.")
@_duration("--restart", "restart_s", "12s", "The same; policy paper.")
@_duration("--warm", "warm_s", "8s", "To open the launcher on a new node; policy ours.")
@_duration("--save-stall", "stall_s", "0s", "How long training stands still for a save.")
@_duration("--save-write", "write_s", "1s", "From then on until it is durable.")
@click.option("--until-done", is_flag=True, help="End with the job's last step, not with the recording.")
@click.option("--plot", type=_FILE, help="Draw nodes, throughput and layout over time into this SVG file.")
@json_option
def simulate(
    *,
    trace: Path,
    job: Path,
    profile: Path | None,
    policy: str,
    start_s: float,
    end_s: float | None,
    notice_s: float,
    slots: int,
    memory: int,
    price: float | None,
    on_demand_price: float | None,
    morph_s: float,
    restart_s: float,
    warm_s: float,
    stall_s: float,
    write_s: float,
    until_done: bool,
    plot: Path | None,
    as_json: bool,
) -> int:
    """Replay a recorded pool on a job, without a manager.

    The manager's own core and planner decide, in virtual time; nodes, agents and steps are simulated.
    """
    machines = Machines(
        slots=slots, memory_bytes=memory, price=price, on_demand_price=on_demand_price, notice_s=notice_s
    )
    costs = Costs(morph_s=morph_s, warm_s=warm_s, save_stall_s=stall_s, save_write_s=write_s)
    paper = Paper(costs=replace(costs, morph_s=restart_s, warm_s=0.0))
    policies = _policies(policy, Ours(costs=costs), paper)
    recording = _part(read_recording(trace), start_s, end_s)
    scenario = _scenario(job, profile, recording, machines)
    if isinstance(scenario, tuple):
        return _refuse(scenario)
    scenario = replace(scenario, stops_when_done=until_done)
    _check_prices(scenario, policies)
    compared = compare(scenario, policies)
    if plot is not None:
        _draw(plot, scenario, compared, trace.name)
    if as_json:
        print_json(document(scenario, compared))
    else:
        console().print(view(scenario, compared, trace.name))
    return 0


def _scenario(
    path: Path, profile: Path | None, recording: Recording, machines: Machines
) -> Scenario | tuple[Mistake, ...]:
    job = read_job(path)
    if not isinstance(job, JobOnDisk):
        return job
    model, measured = _profile(profile, job)
    if mistakes := model_mistakes(job.located, model):
        return mistakes
    return Scenario(
        recording=lent(recording, job.spec.nodes.max),
        spec=job.spec,
        model=model,
        profile=measured,
        machines=machines,
    )


def _check_prices(scenario: Scenario, policies: Sequence[Policy]) -> None:
    chosen_by = {(one.objective or scenario.spec.objective) for one in policies if isinstance(one, Ours)}
    if Objective.COST in chosen_by and scenario.machines.price is None:
        raise InvalidInput("objective is cost, and what a node costs is not known: give --price")


def _part(recording: Recording, start_s: float, end_s: float | None) -> Recording:
    """Return the part that was asked for; nodes that are left at the end of a recording stay."""
    until_s = recording.length_s if end_s is None else end_s
    if until_s <= start_s:
        raise InvalidInput(
            f"the recording lasts {recording.length_s:g} s: seen {start_s:g} s to {until_s:g} s, wanted "
            "a time to replay; with a later --to its last nodes stay"
        )
    return replace(recording, length_s=max(recording.length_s, until_s)).between(start_s, until_s)


def _policies(names: str, ours: Ours, paper: Paper) -> tuple[Policy, ...]:
    policies = tuple(_policy(name.strip(), ours, paper) for name in names.split(","))
    seen = [policy.name for policy in policies]
    if len(set(seen)) < len(seen):
        raise InvalidInput(f"policies: seen {', '.join(seen)}, wanted a name of its own for each")
    return policies


def _policy(name: str, ours: Ours, paper: Paper) -> Policy:
    if name in (ours.name, paper.name):
        return ours if name == ours.name else paper
    path = Path(name)
    if path.suffix not in (".yaml", ".yml", ".json"):
        raise InvalidInput(f"policy: seen {name!r}, wanted ours, paper, or a .yaml or .json file")
    found = parse_policy(text_of(path, "policy"), source=name, ours=ours, paper=paper)
    if isinstance(found, tuple):
        raise InvalidInput("\n".join(map(str, found)))
    return found


def _profile(path: Path | None, job: JobOnDisk) -> tuple[ModelRecord, Profile]:
    """Return the model with its profile: out of a file, or measured on this machine."""
    if path is not None:
        stored = read_profile(path)
        num_steps = job.spec.steps or stored.model.num_steps
        return replace(stored.model, num_steps=num_steps), stored.profile
    click.echo("measuring the model on this machine", err=True)
    try:
        found = measure(job.spec, job.workdir, with_profile=True)
    except ScriptRefused as err:
        if err.detail:
            click.echo(err.detail.rstrip(), err=True)
        raise
    assert found.profile is not None
    return found.model, found.profile


def _draw(path: Path, scenario: Scenario, compared: Comparison, pool: str) -> None:
    spec = scenario.spec
    picture = svg(compared, title=f"{spec.name} on {pool}", batch_size=spec.batch_size)
    write_text(path, "plot", picture)


def _refuse(mistakes: tuple[Mistake, ...]) -> int:
    for mistake in mistakes:
        click.echo(str(mistake), err=True)
    return 1
