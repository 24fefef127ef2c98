"""Collected logs: one file a (job, generation, rank), appended at the sender's offsets, bounded per job."""

import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from varuna_manager import files

_NAME = re.compile(r"g(\d+)-r(-?\d+)(?:@(.+))?\.log")
_TRUNCATED = b"\n[varuna: the log limit of this job is reached; later lines are dropped]\n"


@dataclass(frozen=True, slots=True, order=True)
class LogFile:
    """One rank's log of one generation; rank -1 is the launcher and the setup command of one node."""

    generation: int
    rank: int
    node: str = ""  # of a launcher's: every node has its own

    @property
    def name(self) -> str:
        """File name inside the job's folder."""
        return f"g{self.generation}-r{self.rank}{self.node and f'@{self.node}'}.log"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Shift:
    """How the file differs from what was sent; beside it on disk once it does."""

    bytes: int = 0  # offset at the sender minus size of the file
    is_truncated: bool = False


class Logbook:
    """All calls block; appends to one file must not overlap."""

    def __init__(self, folder: Path, *, max_job_bytes: int, mask: Callable[[str, bytes], bytes]) -> None:
        self._folder = folder
        self._max_job_bytes = max_job_bytes
        self._mask = mask

    def append(self, job: str, log: LogFile, offset: int, chunk: bytes) -> None:
        """Add what is new of `chunk`, whose first byte is at `offset`; sent twice it is written once."""
        path = self._folder / job / log.name
        path.parent.mkdir(parents=True, exist_ok=True)
        shift = _read_shift(path)
        if shift.is_truncated:
            return
        known = self._size(path) + shift.bytes
        if offset > known:
            shift = self._fill_gap(path, offset, known)
            known = offset
        self._write(path, self._mask(job, chunk)[known - offset :], shift)

    def files(self, job: str) -> tuple[LogFile, ...]:
        """Return the logs there are of a job, by generation, then rank."""
        names = (_NAME.fullmatch(path.name) for path in (self._folder / job).glob("*.log"))
        return tuple(sorted(LogFile(int(m[1]), int(m[2]), m[3] or "") for m in names if m))

    def read(self, job: str, log: LogFile, position: int, limit: int) -> bytes:
        """Return up to `limit` bytes from `position` of the file."""
        with (self._folder / job / log.name).open("rb") as file:
            file.seek(position)
            return file.read(limit)

    def _fill_gap(self, path: Path, offset: int, known: int) -> _Shift:
        marker = f"\n[varuna: {offset - known} bytes of this log were lost]\n".encode()
        with path.open("ab") as file:
            file.write(marker)
        shift = _Shift(bytes=offset - self._size(path))
        _write_shift(path, shift)
        return shift

    def _write(self, path: Path, new: bytes, shift: _Shift) -> None:
        room = self._max_job_bytes - sum(f.stat().st_size for f in path.parent.glob("*.log"))
        with path.open("ab") as file:
            file.write(new[: max(room, 0)])
            if len(new) > room:
                file.write(_TRUNCATED)
        if len(new) > room:
            _write_shift(path, _Shift(bytes=shift.bytes, is_truncated=True))

    def _size(self, path: Path) -> int:
        return path.stat().st_size if path.exists() else 0


def _read_shift(path: Path) -> _Shift:
    try:
        return _Shift(**json.loads(path.with_suffix(".shift").read_text()))
    except FileNotFoundError:
        return _Shift()


def _write_shift(path: Path, shift: _Shift) -> None:
    files.replace(path.with_suffix(".shift"), json.dumps(asdict(shift)))
