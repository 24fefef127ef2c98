"""What a script wants to hear of its training: called on rank 0 alone, after a commit, in order.

A callback is a function of a report, or an object with `on_step`, `on_evaluation` or both, and maybe `close`.
What it raises ends the training like any other error of the script.
"""

import json
import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.reports import EvaluationReport, Report, StepReport, json_line
from varuna_runtime.worker import clock
from varuna_runtime.worker.tensorboard import EventFile, require_tensorboard

_METHODS = ("on_step", "on_evaluation")


def check_callbacks(callbacks: object) -> None:
    """Raise InvalidInput if argument `callbacks` of `train` is wrong."""
    if not isinstance(callbacks, list | tuple):
        raise InvalidInput(f"callbacks: seen {type(callbacks).__name__}, wanted a list")
    for callback in callbacks:
        methods = [getattr(callback, name) for name in _METHODS if hasattr(callback, name)]
        if isinstance(callback, type) or not all(map(callable, methods or [callback])):
            raise InvalidInput(
                f"callbacks: seen {callback!r}, wanted a function of a report, or an object with methods "
                "on_step(report), on_evaluation(report) or both"
            )


class Callbacks:
    """All callbacks of one training."""

    def __init__(self, callbacks: Sequence[Any]) -> None:
        self._callbacks = callbacks

    def tell(self, report: Report) -> None:
        """Call every callback that wants to hear of it."""
        name = "on_step" if isinstance(report, StepReport) else "on_evaluation"
        for callback in self._callbacks:
            if not any(hasattr(callback, method) for method in _METHODS):
                callback(report)
            elif hasattr(callback, name):
                getattr(callback, name)(report)

    def close(self) -> None:
        """Let each write what it holds back, also where the training failed."""
        for callback in self._callbacks:
            if hasattr(callback, "close"):
                callback.close()


class _Writer(ABC):
    """Writes both kinds of report in one way."""

    def on_step(self, report: StepReport) -> None:
        """Write a step."""
        self._write(report)

    def on_evaluation(self, report: EvaluationReport) -> None:
        """Write an evaluation."""
        self._write(report)

    @abstractmethod
    def _write(self, report: Report) -> None:
        """Write a report."""


class JsonLines(_Writer):
    """Appends each report as a line of JSON to a file; what a restart tells again replaces its lines."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self._path = Path(path)
        self._file: TextIO | None = None

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()

    def _write(self, report: Report) -> None:
        if self._file is None:
            self._file = self._opened(report)
        self._file.write(json_line(report) + "\n")
        self._file.flush()

    def _opened(self, report: Report) -> TextIO:
        self._path.parent.mkdir(parents=True, exist_ok=True)
        first = report.step, isinstance(report, EvaluationReport)
        lines = (
            self._path.read_text(encoding="utf-8").splitlines(keepends=True) if self._path.exists() else []
        )
        file = self._path.open("w", encoding="utf-8")
        file.writelines(line for line in lines if _is_before(line, first))
        return file


def _is_before(line: str, first: tuple[int, bool]) -> bool:
    try:
        found = json.loads(line)
        return (found["step"], found["kind"] == "evaluation") < first
    except (ValueError, KeyError, TypeError):  # torn by a crash, or not ours
        return False


class TensorBoard(_Writer):
    """Writes each report into event files of a folder; needs `varuna[tensorboard]`."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        """Raises InvalidInput where tensorboard is not installed: better now than after the first step."""
        require_tensorboard()
        self._folder = Path(folder)
        self._file: EventFile | None = None

    def close(self) -> None:
        """Write what is held back."""
        if self._file is not None:
            self._file.close()

    def _write(self, report: Report) -> None:
        at_s = clock.unix_s()
        if self._file is None:
            self._file = EventFile(self._folder, first_step=report.step, at_s=at_s)
        self._file.add(report, at_s=at_s)
