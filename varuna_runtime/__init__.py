"""Varuna's runtime: `import varuna_runtime as varuna` in a training script.

Importing this package imports nothing else; the names below load their modules, and torch, when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from varuna_runtime.partition.cutpoint import CutPoint
    from varuna_runtime.worker.hosts import Result
    from varuna_runtime.worker.training import Training, train

__all__ = ["CutPoint", "Result", "Training", "train"]

_HOMES = {
    "CutPoint": "varuna_runtime.partition.cutpoint",
    "Result": "varuna_runtime.worker.hosts",
    "Training": "varuna_runtime.worker.training",
    "train": "varuna_runtime.worker.training",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
