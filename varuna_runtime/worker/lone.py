"""Runs a training to its end in this process: layout 1x1 of the same engine, no manager, no agents."""

import os
import sys
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import torch
from torch import Tensor

from varuna_runtime.partition import PartitionedModel
from varuna_runtime.partition.seeding import preserved_random_state
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.layout import Layout, Plan, ScheduleKind, Slot, Stage
from varuna_runtime.spec.reports import EvaluationReport, Report, StepReport
from varuna_runtime.worker import clock
from varuna_runtime.worker.callbacks import Callbacks
from varuna_runtime.worker.engine import RankEngine
from varuna_runtime.worker.hosts import Result
from varuna_runtime.worker.link.memory import MemoryNetwork
from varuna_runtime.worker.partitioning import partition_of
from varuna_runtime.worker.telling import evaluation_line, report_of
from varuna_runtime.worker.training import ResolvedTraining, Training, resolve

REPORT_EVERY_S = 5.0


class LoneHost:
    """The default host. $VARUNA_JOB may name a job file: then the weights are those of the submitted job."""

    def __init__(self, report: Callable[[str], None] | None = None) -> None:
        """Give `report` to receive progress lines; by default they go to standard output."""
        self._report = report or _write_line

    def run(self, training: Training) -> Result:
        """Train to the last step. Leaves the process's random state as it was."""
        settings = resolve(training, _job_of(os.environ.get("VARUNA_JOB")))
        torch.set_num_threads(settings.threads)
        with preserved_random_state():
            return self._train(training, settings)

    def _train(self, training: Training, settings: ResolvedTraining) -> Result:
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        model = partition_of(training)
        for warning in model.warnings:
            self._report(f"note: {warning}")
        plan = lone_plan(model, settings)
        engine = RankEngine(training, settings, model, plan, MemoryNetwork(1).link(0), device=device)
        with closing(Callbacks(training.callbacks)) as callbacks:
            reports = self._run(engine, callbacks)
        return Result(
            step=engine.step,
            losses=tuple(report.loss for report in reports if isinstance(report, StepReport)),
            evaluations=tuple(report for report in reports if isinstance(report, EvaluationReport)),
            weights_sha256=engine.weights_sha256(),
            state=_weights(engine),
        )

    def _run(self, engine: RankEngine, callbacks: Callbacks) -> list[Report]:
        """Train to the last step; return what there was to report, in order."""
        reports: list[Report] = []
        started_s = reported_s = clock.now_s()
        while not engine.is_over:
            began_s = clock.now_s()
            done = engine.run_next()
            report = report_of(done, took_s=clock.now_s() - began_s)
            assert report is not None, "nobody asks a lone run to drain"
            callbacks.tell(report)
            reports.append(report)
            if isinstance(report, EvaluationReport):
                self._report(evaluation_line(report))
            elif clock.now_s() - reported_s >= REPORT_EVERY_S or engine.step == engine.num_steps:
                reported_s = clock.now_s()
                self._report(_step_line(report, engine.num_steps, reported_s - started_s))
        return reports


def lone_plan(model: PartitionedModel, settings: ResolvedTraining) -> Plan:
    """Return the plan of layout 1x1 on this machine."""
    return Plan(
        layout=Layout(stages=1, replicas=1),
        stages=(Stage(first=0, last=model.num_segments, recompute=False),),
        schedule=ScheduleKind.ONE_F_ONE_B,
        batch=settings.batch_alone,
        placement=(Slot(node="here", index=0),),
        predicted_step_s=0.0,
    )


def _step_line(report: StepReport, num_steps: int, spent_s: float) -> str:
    pace = report.step / spent_s
    skipped = "  skipped: overflow in fp16" if report.is_skipped else ""
    return f"step {report.step}/{num_steps}  loss {report.loss:.4f}  {pace:.1f} steps/s{skipped}"


def _weights(engine: RankEngine) -> dict[str, Tensor]:
    return {
        name.partition(":")[2]: tensor.to("cpu", copy=True)
        for tensors in engine.state().segments.values()
        for name, tensor in tensors.items()
        if not name.startswith("optim:")
    }


def _job_of(path: str | None) -> JobSpec | None:
    if not path:
        return None
    from varuna_runtime.spec.jobfile import parse

    try:
        text = Path(path).read_text(encoding="utf-8")
    except OSError as err:
        raise InvalidInput(f"$VARUNA_JOB names {path}, which cannot be read: {err.strerror}") from err
    found = parse(text, source=path)
    if isinstance(found, JobSpec):
        return found
    raise InvalidInput("\n".join(str(mistake) for mistake in found))


def _write_line(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()
