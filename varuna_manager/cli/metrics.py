"""`varuna metrics`."""

import math
import sys
from collections.abc import Callable
from contextlib import ExitStack, closing
from pathlib import Path

import click

from varuna_manager.cli.connect import connect
from varuna_manager.cli.options import examples, follow_option, manager_option
from varuna_manager.cli.plain import plain
from varuna_manager.rpc.metrics import Metric
from varuna_runtime.spec.reports import EvaluationReport, Report, json_line


@click.command(
    epilog=examples(
        "varuna metrics gpt -f",
        "varuna metrics gpt --jsonl > gpt.jsonl",
        "varuna metrics gpt -f --tensorboard runs/gpt",
    )
)
@click.argument("job")
@follow_option("Go on until the job is over, across morphs.")
@click.option("--jsonl", is_flag=True, help="Print one line of JSON for each step and evaluation.")
@click.option(
    "--tensorboard",
    metavar="DIR",
    type=click.Path(file_okay=False, path_type=Path),
    help="Write TensorBoard event files into DIR, and print nothing; needs varuna[tensorboard].",
)
@manager_option
def metrics(job: str, *, follow: bool, jsonl: bool, tensorboard: Path | None, manager: str | None) -> None:
    """Print the figures of steps and evaluations, or write them as files."""
    if jsonl and tensorboard is not None:
        raise click.UsageError("--jsonl and --tensorboard: wanted one of them")
    with connect(manager) as client, ExitStack() as held:
        found = client.job(job).job
        if tensorboard is not None:
            show = _event_file(tensorboard, held)
        else:
            show = _printed(json_line if jsonl else metric_line)
        for metric in client.metrics(found, follow=follow):
            show(metric)


def metric_line(report: Report) -> str:
    """Return a step or an evaluation as a line for people."""
    if isinstance(report, EvaluationReport):
        values = "  ".join(f"{name} {value:.6g}" for name, value in report.values.items())
        return plain(f"step {report.step}  evaluation  {values}")
    parts = [f"step {report.step}", f"loss {report.loss:.6f}"]
    if report.is_skipped:
        parts.append("skipped: overflow in fp16")
    parts += [
        f"{name} {value:.6g}"
        for name, value, usual in (
            ("grad norm", report.grad_norm, None),
            ("learning rate", report.learning_rate, None),
            ("loss scale", report.loss_scale, 1.0),
        )
        if value is not None and value != usual and math.isfinite(value)
    ]
    if report.samples_per_s is not None:
        parts.append(f"{report.samples_per_s:.1f} samples/s")
    return "  ".join(parts)


def _printed(line: Callable[[Report], str]) -> Callable[[Metric], None]:
    def show(metric: Metric) -> None:
        click.echo(line(metric.report))
        sys.stdout.flush()

    return show


def _event_file(folder: Path, held: ExitStack) -> Callable[[Metric], None]:
    from varuna_runtime.worker.tensorboard import EventFile

    file: EventFile | None = None

    def show(metric: Metric) -> None:
        nonlocal file
        if file is None:
            file = held.enter_context(
                closing(EventFile(folder, first_step=metric.report.step, at_s=metric.at))
            )
        file.add(metric.report, at_s=metric.at)

    return show
