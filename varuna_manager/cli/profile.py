"""`varuna profile`: what the segments of a model cost on this machine, or what they might cost."""

import json
from pathlib import Path
from typing import Any

import click

from varuna_manager.cli.job_on_disk import JobOnDisk, read_job
from varuna_manager.cli.options import Number, as_bytes, as_seconds, examples, json_option
from varuna_manager.cli.output import console, print_json
from varuna_manager.cli.profile_file import write_profile
from varuna_manager.cli.profile_view import view
from varuna_manager.cli.scripts import Measured, ScriptRefused, measure
from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.profile import LinkCost, ProfiledModel
from varuna_runtime.spec.profile_checks import flaw
from varuna_runtime.spec.synthetic import SyntheticCosts, equal_segments, synthetic

_SIZE: dict[str, Any] = {"callback": as_bytes, "metavar": "SIZE"}
_TIME: dict[str, Any] = {"callback": as_seconds, "metavar": "DURATION"}
_RATE: dict[str, Any] = {"type": Number(min=0, min_open=True), "metavar": "GBIT/S"}


@click.command(
    epilog=examples(
        "varuna profile examples/gpt/job.yaml --output gpt.json",
        "varuna profile --synthetic --segments 24 --forward 0.04 --output-size 4M --params 100M -o big.json",
    )
)
@click.argument("file", type=click.Path(path_type=Path), required=False)
@click.option(
    "-o", "--output", type=click.Path(path_type=Path, dir_okay=False), help="Write it to this file."
)
@click.option("--synthetic", "is_synthetic", is_flag=True, help="Measure nothing: take the numbers below.")
@click.option("--segments", type=click.IntRange(min=1), help="How many; the job's, if a job file is given.")
@click.option("--params", **_SIZE, help="Parameter bytes of a segment; the job's own, if one is given.")
@click.option("--micro-batch", type=click.IntRange(min=1), default=1, show_default=True, help="Its samples.")
@click.option("--forward", **_TIME, help="Of a segment and a micro-batch.")
@click.option("--backward", **_TIME, help="The same; default: twice the forward.")
@click.option("--output-size", **_SIZE, help="What a segment hands to the next one.")
@click.option("--saved", **_SIZE, help="Kept for the backward; default: ten outputs.")
@click.option("--latency", default="0.0001", show_default=True, **_TIME, help="Of a message.")
@click.option("--bandwidth", default=10.0, show_default=True, **_RATE, help="Between nodes.")
@click.option("--bandwidth-inside", default=100.0, show_default=True, **_RATE, help="Inside a node.")
@json_option
def profile(
    file: Path | None, *, output: Path | None, is_synthetic: bool, as_json: bool, **numbers: Any
) -> int:
    """Measure the model of a job file on this machine.

    Shows what each segment takes: time of a micro-batch, and bytes. Links are guessed, as this is one
    machine. With --synthetic nothing is measured: --forward and --output-size are then needed, and
    --segments and --params where there is no job file.
    """
    found: ProfiledModel | int
    if is_synthetic:
        found = _synthetic(file, **numbers)
    elif file is None:
        raise click.UsageError("give a job file to measure, or --synthetic and its numbers")
    else:
        found = _measured(file)
    if isinstance(found, int):
        return found
    if output is not None:
        write_profile(output, found)
    if as_json:
        print_json(json.loads(canonical.dumps(found)))
    else:
        console().print(view(found))
    return 0


def _measured(file: Path) -> ProfiledModel | int:
    found = _looked_at(file, with_profile=True)
    if isinstance(found, int):
        return found
    assert found.profile is not None
    return ProfiledModel(model=found.model, profile=found.profile)


def _looked_at(file: Path, *, with_profile: bool) -> Measured | int:
    """Run the script of a job file; the exit code if the file is refused."""
    job = read_job(file)
    if not isinstance(job, JobOnDisk):
        for mistake in job:
            click.echo(str(mistake), err=True)
        return 1
    try:
        return measure(job.spec, job.workdir, with_profile=with_profile)
    except ScriptRefused as err:
        if err.detail:
            click.echo(err.detail.rstrip(), err=True)
        raise


def _synthetic(
    file: Path | None,
    *,
    segments: int | None,
    params: int | None,
    micro_batch: int,
    forward: float | None,
    backward: float | None,
    output_size: int | None,
    saved: int | None,
    latency: float,
    bandwidth: float,
    bandwidth_inside: float,
) -> ProfiledModel | int:
    if forward is None or output_size is None:
        raise click.UsageError("--synthetic needs --forward and --output-size")
    model = _model(file, segments, params)
    if isinstance(model, int):
        return model
    costs = SyntheticCosts(
        micro_batch_size=micro_batch,
        forward_s=forward,
        backward_s=2 * forward if backward is None else backward,
        output_bytes=output_size,
        saved_bytes=10 * output_size if saved is None else saved,
        optimizer_factor=2.0,
        optimizer_step_s_per_byte=1e-10,
        same_node=LinkCost(latency_s=latency, bandwidth_bps=bandwidth_inside * 1e9),
        cross_node=LinkCost(latency_s=latency, bandwidth_bps=bandwidth * 1e9),
    )
    made = synthetic(model, costs)
    if why := flaw(made):
        raise InvalidInput(f"no planner can use this profile: {why}")
    return made


def _model(file: Path | None, segments: int | None, params: int | None) -> ModelRecord | int:
    if file is None:
        if segments is None or params is None:
            raise click.UsageError("--synthetic without a job file needs --segments and --params")
        return equal_segments(segments, params)
    if segments is not None or params is not None:
        raise click.UsageError("--segments and --params are the job's own where a job file is given")
    found = _looked_at(file, with_profile=False)
    return found if isinstance(found, int) else found.model
