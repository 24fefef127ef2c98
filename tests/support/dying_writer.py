"""A process that forks writers, each of which SIGKILLs itself at another point of its second save.

Run as `python -m tests.support.dying_writer FOLDER URL POINTS`: makes a store URL/<point> for each, writes
the points' names into FOLDER/points. POINTS is how many byte offsets; every step between is a point too.
"""

import os
import signal
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO, NoReturn
from urllib.parse import urlsplit

import torch
from obstore.store import from_url

from tests.support.checkpoints import Ranks, model_record, saved, state
from varuna_runtime.spec.layout import Layout
from varuna_runtime.store import Store, open_store
from varuna_runtime.store.local import FileStore
from varuna_runtime.store.objects import ObjectStore

FIRST, SECOND = 10, 20
_PIECE_BYTES = 64


BYTES = "bytes"  # what a tick within an object is called; another is a step of the save


class Fuse:
    """Counts ticks by name and ends the process at the last one."""

    def __init__(self, left: int) -> None:
        self.left = left
        self.names: list[str] = []

    def tick(self, name: str) -> None:
        """Burn one."""
        self.names.append(name)
        if len(self.names) == self.left:
            os.kill(os.getpid(), signal.SIGKILL)


class DyingFileStore(FileStore):
    """Ticks after every few bytes of a file, and around every step of its commit."""

    def __init__(self, root: Path, fuse: Fuse) -> None:
        super().__init__(root)
        self._fuse = fuse

    def delete(self, keys: Iterable[str]) -> None:
        """Delete one by one."""
        for key in keys:
            super().delete([key])
            self._fuse.tick(f"deleted {key}")

    def sweep(self, folder: str, *, before: str) -> None:
        """Tick around it."""
        self._fuse.tick("before the sweep")
        super().sweep(folder, before=before)
        self._fuse.tick("swept")

    def _write(self, key: str, fill: Callable[[BinaryIO], None], place: Callable[[Path, Path], None]) -> None:
        def place_ticking(source: Path, target: Path) -> None:
            self._fuse.tick(f"synced {key}")
            place(source, target)
            self._fuse.tick(f"placed {key}")

        def fill_ticking(out: BinaryIO) -> None:
            self._fuse.tick(f"opened {key}")
            fill(_Pieces(out, self._fuse))

        super()._write(key, fill_ticking, place_ticking)
        self._fuse.tick(f"made {key} durable")


class _Pieces:
    def __init__(self, out: BinaryIO, fuse: Fuse) -> None:
        self._out, self._fuse = out, fuse

    def write(self, data: bytes | memoryview) -> int:
        for start in range(0, len(data), _PIECE_BYTES):
            self._out.write(data[start : start + _PIECE_BYTES])
            self._fuse.tick(BYTES)
        return len(data)


class DyingObjectStore(ObjectStore):
    """Ticks before and after every request that changes something."""

    def __init__(self, url: str, fuse: Fuse) -> None:
        super().__init__(from_url(url))
        self._fuse = fuse

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Tick around it."""
        self._around(f"put {key}", lambda: super(DyingObjectStore, self).put(key, data))

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Tick around it."""
        self._around(f"commit {key}", lambda: super(DyingObjectStore, self).put_if_absent(key, data))

    def delete(self, keys: Iterable[str]) -> None:
        """Delete one by one."""
        for key in keys:
            self._around(f"delete {key}", lambda key=key: super(DyingObjectStore, self).delete([key]))

    def _around(self, name: str, request: Callable[[], None]) -> None:
        self._fuse.tick(f"before {name}")
        request()
        self._fuse.tick(f"after {name}")


def dying(url: str, fuse: Fuse) -> Store:
    """Return the store at `url` with the fuse in it."""
    return (
        DyingFileStore(Path(urlsplit(url).path), fuse)
        if url.startswith("file:")
        else DyingObjectStore(url, fuse)
    )


def write(url: str, fuse: Fuse) -> None:
    """Save one step in peace and a second one with the fuse burning."""
    saved(open_store(url), FIRST)
    model = model_record()
    # One rank, so that the points are the same in every run.
    ranks = Ranks(dying(url, fuse), layout=Layout(stages=1, replicas=1), model=model, keep=1)
    assert ranks.save(SECOND, state(model, SECOND))
    ranks.close()


def fork_writer(url: str, ticks: int) -> int:
    """Return the signal that ended a child that dies after `ticks`."""
    child = os.fork()
    if child == 0:
        _child(lambda: write(url, Fuse(left=ticks)))
    return os.WTERMSIG(os.waitpid(child, 0)[1])


def _child(work: Callable[[], object]) -> NoReturn:
    code = 1
    try:
        work()
        code = 0
    finally:
        os._exit(code)


def chosen(names: list[str], num_offsets: int) -> list[int]:
    """Return every step, and byte offsets spread evenly over the save."""
    offsets = [i for i, name in enumerate(names) if name == BYTES]
    count = min(num_offsets, len(offsets))
    some = {offsets[i * (len(offsets) - 1) // (count - 1)] for i in range(count)} if count > 1 else set()
    return [i for i, name in enumerate(names) if name != BYTES or i in some]


def main(folder: Path, url: str, num_offsets: int) -> None:
    """Fork one writer per point."""
    torch.set_num_threads(1)
    child = os.fork()
    if child == 0:
        _child(lambda: _note_points(folder, f"{url}/whole", num_offsets))
    assert os.waitpid(child, 0)[1] == 0
    for index, line in enumerate((folder / "points").read_text().splitlines()):
        assert fork_writer(f"{url}/{index}", int(line.split()[0])) == signal.SIGKILL


def _note_points(folder: Path, url: str, num_offsets: int) -> None:
    fuse = Fuse(left=-1)
    write(url, fuse)
    points = [f"{i + 1} {fuse.names[i]}" for i in chosen(fuse.names, num_offsets)]
    (folder / "points").write_text("\n".join(points))


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], int(sys.argv[3]))
