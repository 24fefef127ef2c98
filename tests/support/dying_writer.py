"""A process that forks writers, each of which SIGKILLs itself at another point of its second save.

Run as `python -m tests.support.dying_writer FOLDER POINTS`; leaves one store per point in FOLDER/<point>.
"""

import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO, NoReturn

import torch

from tests.support.checkpoints import Ranks, model_record, saved, state
from varuna_runtime.spec.layout import Layout
from varuna_runtime.store.local import FileStore

FIRST, SECOND = 10, 20
_PIECE_BYTES = 64


class Fuse:
    """Counts ticks and ends the process at the last one."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.burnt = 0

    def tick(self) -> None:
        """Burn one."""
        self.burnt += 1
        self.left -= 1
        if self.left == 0:
            os.kill(os.getpid(), signal.SIGKILL)


class DyingStore(FileStore):
    """Ticks after every few bytes of a file, before it is put in place, and after."""

    def __init__(self, root: Path, fuse: Fuse) -> None:
        super().__init__(root)
        self._fuse = fuse

    def _write(self, key: str, fill: Callable[[BinaryIO], None], place: Callable[[Path, Path], None]) -> None:
        def place_ticking(source: Path, target: Path) -> None:
            self._fuse.tick()
            place(source, target)
            self._fuse.tick()

        super()._write(key, lambda out: fill(_Pieces(out, self._fuse)), place_ticking)


class _Pieces:
    def __init__(self, out: BinaryIO, fuse: Fuse) -> None:
        self._out, self._fuse = out, fuse

    def write(self, data: bytes | memoryview) -> int:
        for start in range(0, len(data), _PIECE_BYTES):
            self._out.write(data[start : start + _PIECE_BYTES])
            self._fuse.tick()
        return len(data)


def write(root: Path, fuse: Fuse) -> None:
    """Save one step in peace and a second one with the fuse burning."""
    saved(FileStore(root), FIRST)
    model = model_record()
    ranks = Ranks(DyingStore(root, fuse), layout=Layout(stages=1, replicas=2), model=model, keep=1)
    assert ranks.save(SECOND, state(model, SECOND))
    ranks.close()


def total_ticks(root: Path) -> int:
    """Return how many ticks a whole save takes."""
    fuse = Fuse(left=-1)
    write(root, fuse)
    return fuse.burnt


def fork_writer(root: Path, ticks: int) -> int:
    """Return the signal that ended a child that dies after `ticks`."""
    child = os.fork()
    if child == 0:
        _child(root, ticks)
    return os.WTERMSIG(os.waitpid(child, 0)[1])


def _child(root: Path, ticks: int) -> NoReturn:
    try:
        write(root, Fuse(left=ticks))
    finally:
        os._exit(1)


def main(folder: Path, points: int) -> None:
    """Fork one writer per point; points are spread evenly over the save."""
    torch.set_num_threads(1)
    counted = os.fork()
    if counted == 0:
        (folder / "ticks").write_text(str(total_ticks(folder / "whole")))
        os._exit(0)
    os.waitpid(counted, 0)
    total = int((folder / "ticks").read_text())
    for point in range(points):
        ticks = 1 + point * (total - 1) // (points - 1)
        assert fork_writer(folder / str(point), ticks) == signal.SIGKILL


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
