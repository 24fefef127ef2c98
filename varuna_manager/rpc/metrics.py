"""Figures of steps and evaluations: from an agent's messages to rows, and on to a client's reports; pure."""

from dataclasses import dataclass

from varuna_manager.rows import MetricRow
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.reports import EvaluationReport, Report, StepReport
from varuna_runtime.wire.v1 import agent_pb2, client_pb2, common_pb2

_MAX_BYTES = 64 * 2**10  # of one evaluation
_MAX_STEP = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Metric:
    """The figures of a committed step or of an evaluation; replays are left out."""

    generation: int  # the first that made it
    at: float  # Unix seconds
    report: Report


def step_rows(report: agent_pb2.StepReport, at_s: float) -> tuple[MetricRow, ...]:
    """Return the rows that keep the figures of a report's steps."""
    return tuple(_step_row(step, report.job, report.generation, at_s) for step in report.steps)


def evaluation_row(done: common_pb2.EvaluationDone, job: str, at_s: float) -> MetricRow:
    """Return the row that keeps an evaluation; InvalidInput when it is not a proper one."""
    if done.ByteSize() > _MAX_BYTES:
        raise InvalidInput(f"evaluation: seen {done.ByteSize()} bytes, wanted at most {_MAX_BYTES}")
    try:
        [float.fromhex(figure.value_hex) for figure in done.figures]
    except (ValueError, OverflowError) as err:
        raise InvalidInput(f"evaluation after step {done.step}: {err}") from err
    return MetricRow(
        job=job,
        step=_checked(done.step),
        is_evaluation=True,
        generation=done.generation,
        at_s=at_s,
        body=done.SerializeToString(),
    )


def earlier_rows(report: agent_pb2.RankReport, at_s: float) -> tuple[MetricRow, ...]:
    """Return what a rank tells again out of its checkpoint."""
    steps = [_step_row(c.step, report.job, c.generation, at_s) for c in report.active.earlier]
    told = [evaluation_row(done, report.job, at_s) for done in report.active.evaluations]
    return tuple(row for row in (*steps, *told) if row.generation)


def _step_row(step: common_pb2.StepDone, job: str, generation: int, at_s: float) -> MetricRow:
    return MetricRow(
        job=job,
        step=_checked(step.step) + 1,
        is_evaluation=False,
        generation=generation,
        at_s=at_s,
        body=step.SerializeToString(),
    )


def _checked(step: int) -> int:
    if not 0 <= step <= _MAX_STEP:
        raise InvalidInput(f"step: seen {step}, wanted 0 to {_MAX_STEP}")
    return step


def record(row: MetricRow) -> client_pb2.MetricRecord:
    """Return the message of a committed step or an evaluation."""
    found = client_pb2.MetricRecord(generation=row.generation, at=row.at_s)
    (found.evaluation if row.is_evaluation else found.step).ParseFromString(row.body)
    return found


def metric_of(message: client_pb2.MetricRecord) -> Metric:
    """Return what a client sees of a message."""
    report: Report
    if message.WhichOneof("body") == "evaluation":
        evaluation = message.evaluation
        report = EvaluationReport(
            step=evaluation.step,
            samples=evaluation.samples,
            values={figure.name: float.fromhex(figure.value_hex) for figure in evaluation.figures},
            evaluation_s=evaluation.evaluation_s,
        )
    else:
        done = message.step
        report = StepReport(
            step=done.step + 1,
            loss=done.loss,
            grad_norm=done.grad_norm if done.HasField("grad_norm") else None,
            learning_rate=done.learning_rate if done.HasField("learning_rate") else None,
            loss_scale=done.loss_scale if done.HasField("loss_scale") else None,
            is_skipped=done.skipped,
            samples=done.samples,
            step_s=done.step_s,
        )
    return Metric(generation=message.generation, at=message.at, report=report)
