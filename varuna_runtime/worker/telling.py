"""The engine's signals as reports for callbacks, and evaluations as text for people."""

from varuna_runtime.spec.reports import EvaluationReport, Report, StepReport
from varuna_runtime.worker.signals import EvaluationDone, StepDone


def report_of(done: StepDone | EvaluationDone, *, took_s: float) -> Report | None:
    """Return what callbacks are told; None for an evaluation that was abandoned."""
    if isinstance(done, EvaluationDone):
        if done.record is None:
            return None
        return EvaluationReport(
            step=done.record.step,
            samples=done.record.samples,
            values=done.record.values,
            evaluation_s=took_s,
        )
    return StepReport(
        step=done.record.step + 1,
        loss=done.loss,
        grad_norm=None if done.record.is_skipped else done.grad_norm,
        learning_rate=done.learning_rate,
        loss_scale=done.loss_scale,
        is_skipped=done.record.is_skipped,
        samples=done.record.samples,
        step_s=took_s,
    )


def evaluation_line(report: EvaluationReport) -> str:
    """Return an evaluation as a line for people."""
    values = "  ".join(f"{name} {value:.4f}" for name, value in report.values.items())
    return f"evaluation after step {report.step}  {values}"
