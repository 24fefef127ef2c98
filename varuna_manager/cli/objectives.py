"""What a plan was chosen by: options that ask for it, and how it is told."""

from collections.abc import Iterator
from pathlib import Path
from typing import assert_never

import click

from varuna_manager.cli.output import seconds
from varuna_manager.cli.recordings import read_recording
from varuna_manager.planner.outlook import LossRate, Outlook
from varuna_manager.planner.request import Explanation
from varuna_manager.whatif import rates
from varuna_runtime.spec.job import Objective


def losses_of(objective: Objective | None, per_hour: float | None, recording: Path | None) -> LossRate | None:
    """Return the losses that the options ask to reckon with; None: as the manager has seen."""
    if per_hour is None and recording is None:
        return None
    if objective is not Objective.PROGRESS:
        raise click.UsageError("--loss-rate and --outlook-from are for --objective progress")
    if per_hour is None:
        assert recording is not None
        return rates.loss_rate(read_recording(recording))
    if recording is not None:
        raise click.UsageError("give --loss-rate or --outlook-from, not both")
    return LossRate(per_node_s=per_hour / 3600)


def objective_lines(why: Explanation | None) -> Iterator[str]:
    """Yield the plan's value by its objective, and what that reckons with."""
    if why is None or why.value <= 0:
        return
    match why.objective:
        case Objective.THROUGHPUT:
            yield f"objective throughput: {_count(why.value)} samples/s"
        case Objective.COST:
            yield f"objective cost: {_count(why.value)} samples per dollar"
        case Objective.PROGRESS:
            assert why.outlook is not None
            ahead = seconds(why.outlook.horizon_s)
            yield f"objective progress: {_count(why.value)} samples expected in the next {ahead}"
            yield _losses(why.outlook)
        case _:
            assert_never(why.objective)


def _losses(outlook: Outlook) -> str:
    losses = outlook.losses
    if losses.per_node_s <= 0:
        return "no node is expected to be lost"
    each = f"each node is lost once in {seconds(1 / losses.per_node_s)}, {losses.mean_burst:.2g} at a time"
    return f"{each} in the mean; training then pauses for {seconds(outlook.pause_s)}"


def _count(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
