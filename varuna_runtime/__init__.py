"""Varuna's runtime: `import varuna_runtime as varuna` in a training script.

Importing this package imports nothing else; the names below load their modules, and torch, when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from varuna_runtime.partition.cutpoint import CutPoint
    from varuna_runtime.spec.reports import EvaluationReport, StepReport
    from varuna_runtime.worker.callbacks import JsonLines, TensorBoard
    from varuna_runtime.worker.evaluation import Evaluation
    from varuna_runtime.worker.hosts import Result
    from varuna_runtime.worker.training import Training, train

__all__ = [
    "CutPoint",
    "Evaluation",
    "EvaluationReport",
    "JsonLines",
    "Result",
    "StepReport",
    "TensorBoard",
    "Training",
    "train",
]

_HOMES = {
    "CutPoint": "varuna_runtime.partition.cutpoint",
    "Evaluation": "varuna_runtime.worker.evaluation",
    "EvaluationReport": "varuna_runtime.spec.reports",
    "JsonLines": "varuna_runtime.worker.callbacks",
    "Result": "varuna_runtime.worker.hosts",
    "StepReport": "varuna_runtime.spec.reports",
    "TensorBoard": "varuna_runtime.worker.callbacks",
    "Training": "varuna_runtime.worker.training",
    "train": "varuna_runtime.worker.training",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
