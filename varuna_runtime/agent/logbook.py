"""The agent's log, written by a thread of its own: a slow or full disk must not hold up a beat."""

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from queue import Empty, Full, Queue
from threading import Event, Thread
from typing import TextIO

import structlog

_MOST_LINES = 10_000  # that wait for the disk; further ones are lost, and counted
_LAST_WORDS_S = 2.0  # how long an ending agent waits for the disk
_LOOK_S = 0.1


def log_as_json(file: TextIO | None = None) -> None:
    """Log one JSON object a line from here on, to standard output by default; whoever logs waits for it."""
    structlog.configure(
        processors=[
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.JSONRenderer(),
        ],
        logger_factory=structlog.WriteLoggerFactory(file or sys.stdout),
    )


@contextmanager
def unhurried_log(file: TextIO | None = None, *, most_lines: int = _MOST_LINES) -> Iterator[None]:
    """Log likewise, but nobody waits for the file; what is left is written at the end, within a while."""
    lines = _Lines(file or sys.stdout, most_lines)
    log_as_json(lines)  # type: ignore[arg-type]  # of a file it uses these two methods
    try:
        yield
    finally:
        log_as_json(file)
        lines.close()


class _Lines:
    """What a logger takes for a file."""

    def __init__(self, file: TextIO, most_lines: int) -> None:
        self._file = file
        self._waiting: Queue[str] = Queue(most_lines)
        self._num_lost = 0
        self._is_over = Event()
        self._thread = Thread(target=self._serve, name="log", daemon=True)
        self._thread.start()

    def write(self, line: str) -> None:
        """Take a line; it is lost if too many wait."""
        try:
            self._waiting.put_nowait(line)
        except Full:
            self._num_lost += 1

    def flush(self) -> None:
        """Do nothing: the thread flushes."""

    def close(self) -> None:
        """Wait until all is written, or not much longer."""
        self._is_over.set()
        self._thread.join(_LAST_WORDS_S)

    def _serve(self) -> None:
        while True:
            try:
                self._put(self._waiting.get(timeout=_LOOK_S))
            except Empty:
                if self._is_over.is_set():
                    return

    def _put(self, line: str) -> None:
        num_lost, self._num_lost = self._num_lost, 0
        if num_lost:
            line += json.dumps({"num_lines": num_lost, "event": "log lines lost", "level": "warning"}) + "\n"
        with suppress(OSError, ValueError):  # a full disk, or nobody reads it: there is no place to tell it
            self._file.write(line)
            self._file.flush()
