"""Reading a job's collected logs, once or as they grow, in whole lines."""

from collections.abc import Iterator
from dataclasses import dataclass

from varuna_manager.logbook import Logbook, LogFile

_CHUNK_BYTES = 256 * 2**10


@dataclass(frozen=True, slots=True, kw_only=True)
class LogLines:
    """Whole lines of one log."""

    log: LogFile
    data: bytes


class Tail:
    """Remembers how far each log was read. Calls block."""

    def __init__(self, logbook: Logbook, job: str, rank: int | None) -> None:
        self._logbook = logbook
        self._job = job
        self._rank = rank
        self._positions: dict[LogFile, int] = {}

    def new_lines(self, *, is_last: bool) -> Iterator[LogLines]:
        """Yield what is new by generation, then rank; the last reading gives unfinished lines too."""
        for log in self._logbook.files(self._job):
            if self._rank is None or self._rank == log.rank:
                yield from self._of(log, is_last=is_last)

    def _of(self, log: LogFile, *, is_last: bool) -> Iterator[LogLines]:
        while True:
            position = self._positions.get(log, 0)
            data = self._logbook.read(self._job, log, position, _CHUNK_BYTES)
            lines = _complete(data, is_last=is_last)
            if not lines:
                return
            self._positions[log] = position + len(lines)
            yield LogLines(log=log, data=lines)


def _complete(data: bytes, *, is_last: bool) -> bytes:
    """Whole lines; what has no end yet counts at the last reading, or when it fills a chunk alone."""
    end = data.rfind(b"\n") + 1
    is_full = len(data) == _CHUNK_BYTES
    if (is_last and not is_full) or (is_full and end == 0):
        return data
    return data[:end]
