"""What callbacks, files and `varuna metrics` are told of a training, and its form as a line of JSON."""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StepReport:
    """One committed step; what is unknown is None."""

    step: int  # number of committed steps, this one included
    loss: float  # mean over the step's weight
    grad_norm: float | None  # before clipping; None if the step was skipped
    learning_rate: float | None  # of the first parameter group, used by this step
    loss_scale: float | None  # under fp16; else 1
    is_skipped: bool  # fp16 overflowed: nothing was changed
    samples: int
    step_s: float  # 0: unknown

    @property
    def samples_per_s(self) -> float | None:
        """Speed of this step."""
        return self.samples / self.step_s if self.step_s > 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationReport:
    """One finished evaluation; `values` are means over the weights: `loss`, then the script's metrics."""

    step: int  # number of committed steps
    samples: int
    values: Mapping[str, float]
    evaluation_s: float = 0.0  # 0: unknown


Report = StepReport | EvaluationReport


def json_line(report: Report) -> str:
    """Return one line of JSON, `kind` first; what is unknown or not finite is null."""
    if isinstance(report, StepReport):
        plain: dict[str, object] = {
            "kind": "step",
            "step": report.step,
            "loss": _finite(report.loss),
            "grad_norm": _finite(report.grad_norm),
            "learning_rate": _finite(report.learning_rate),
            "loss_scale": _finite(report.loss_scale),
            "skipped": report.is_skipped,
            "samples": report.samples,
            "samples_per_s": _finite(report.samples_per_s),
        }
    else:
        plain = {
            "kind": "evaluation",
            "step": report.step,
            "samples": report.samples,
            "values": {name: _finite(value) for name, value in report.values.items()},
        }
    return json.dumps(plain)


def scalars(report: Report) -> dict[str, float]:
    """Return the finite figures by the names they have on a chart."""
    if isinstance(report, StepReport):
        found = {
            "train/loss": report.loss,
            "train/grad_norm": report.grad_norm,
            "train/learning_rate": report.learning_rate,
            "train/loss_scale": report.loss_scale,
            "train/samples_per_s": report.samples_per_s,
        }
    else:
        found = {f"evaluation/{name}": value for name, value in report.values.items()}
    return {name: value for name, value in found.items() if value is not None and math.isfinite(value)}


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None
