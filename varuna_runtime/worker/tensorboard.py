"""Writes reports as TensorBoard event files; imports the package tensorboard when first used, never torch."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.reports import Report, scalars

_FLUSH_S = 5


def require_tensorboard() -> None:
    """Raise InvalidInput where the package is not installed."""
    if find_spec("tensorboard") is None:
        raise InvalidInput("TensorBoard files need the package tensorboard; install varuna[tensorboard]")


class EventFile:
    """One more event file of a folder; what older ones there say of `first_step` and later counts no more."""

    def __init__(self, folder: Path, *, first_step: int, at_s: float) -> None:
        """Open it; raises InvalidInput where tensorboard is not installed."""
        require_tensorboard()
        from tensorboard.compat.proto import event_pb2, summary_pb2
        from tensorboard.summary.writer.event_file_writer import EventFileWriter

        self._event: Any = event_pb2.Event
        self._summary: Any = summary_pb2.Summary
        folder.mkdir(parents=True, exist_ok=True)
        self._writer: Any = EventFileWriter(str(folder), flush_secs=_FLUSH_S)
        start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
        self._writer.add_event(self._event(wall_time=at_s, step=first_step, session_log=start))

    def add(self, report: Report, *, at_s: float) -> None:
        """Write the figures of a report; `at_s` is the Unix time."""
        values = [
            self._summary.Value(tag=name, simple_value=value) for name, value in scalars(report).items()
        ]
        self._writer.add_event(
            self._event(wall_time=at_s, step=report.step, summary=self._summary(value=values))
        )

    def close(self) -> None:
        """Write what is held back."""
        self._writer.close()
