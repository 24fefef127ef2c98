"""The store on a file system: obstore reads, our own writes, since its LocalStore never calls fsync."""

import errno
import fcntl
import os
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from obstore.store import LocalStore

from varuna_runtime.spec.errors import ObjectMissing, StoreError
from varuna_runtime.store.objects import ObjectStore, checked, translated

_DIRECT_BYTES = 1 << 20  # from here on a copy in the kernel costs more than it is worth
_ALIGNMENT = 4096
_CHUNK_BYTES = 16 << 20
_COPIED_BYTES = 512 << 10  # below what is written past the cache
_MOST_BUFFERS = 1024  # of one call
_LEFTOVER = re.compile(r".*#\d+")  # a name obstore's LocalStore never lists


class FileStore(ObjectStore):
    """A Store in a folder; an object is written beside its place, synced, then moved or linked into it."""

    def __init__(self, root: Path) -> None:
        with translated(str(root)):
            root.mkdir(parents=True, exist_ok=True)
            super().__init__(LocalStore(root))
        self._root = root

    @property
    def range_bytes(self) -> int:
        """See Store."""
        return 1 << 20

    @property
    def num_readers(self) -> int:
        """See Store."""
        return 2

    def put(self, key: str, data: bytes | memoryview) -> None:
        """See Store."""
        self._write(key, lambda out: _write_all(out, data), os.replace)

    def put_unsynced(self, key: str, data: bytes | memoryview) -> None:
        """Like `put`, for what may be gone or torn after a loss of power: a reader must check it."""
        target = self._root / checked(key)
        with translated(key):
            target.parent.mkdir(parents=True, exist_ok=True)
            with _beside(target) as temporary:
                with temporary.open("xb", buffering=0) as out:
                    _write_all(out, data)
                temporary.replace(target)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """See Store."""
        self._write(key, lambda out: _write_all(out, data), os.link)

    def put_file(self, key: str, path: Path) -> None:
        """See Store."""
        with path.open("rb") as source:
            self._write(key, lambda out: _copy_all(source, out), os.replace)

    def read_into(self, key: str, start: int, into: Sequence[memoryview]) -> int:
        """See Store; called for every megabyte, so it does not ask first whether the object is a folder."""
        with translated(key):
            handle = os.open(f"{self._root}/{checked(key)}", os.O_RDONLY | os.O_CLOEXEC)
            try:
                return _read_all(handle, start, into)
            except IsADirectoryError as err:
                raise ObjectMissing(f"no object {key}") from err
            finally:
                os.close(handle)

    def sizes(self, prefix: str) -> dict[str, int]:
        """See Store; obstore fails where a file stands in the place of the folder."""
        is_empty = prefix and not (self._root / checked(prefix)).is_dir()
        return {} if is_empty else super().sizes(prefix)

    def written_at(self, prefix: str) -> dict[str, float]:
        """See Store; see `sizes` too."""
        is_empty = prefix and not (self._root / checked(prefix)).is_dir()
        return {} if is_empty else super().written_at(prefix)

    def sweep(self, folder: str, *, before: str) -> None:
        """See Store; empty folders go too."""
        parent = self._root / checked(folder)
        with translated(folder):
            for child in sorted(parent.iterdir()) if parent.is_dir() else ():
                if child.name < before and child.is_dir():
                    _sweep_tree(child)

    def _existing(self, key: str) -> str:
        """Refuse a folder, which obstore would try to read as a file."""
        if not (self._root / checked(key)).is_file():
            raise ObjectMissing(f"no object {key}")
        return key

    def _write(self, key: str, fill: Callable[[BinaryIO], None], place: Callable[[Path, Path], None]) -> None:
        target = self._root / checked(key)
        try:
            with translated(key):
                _make_folder(target.parent)
                with _beside(target) as temporary:
                    _write_synced(temporary, fill)
                    try:
                        place(temporary, target)
                    finally:  # what another writer has placed there counts as durable, too
                        _sync_folder(target.parent)
        except ObjectMissing as err:
            raise StoreError(f"{key}: its folder went away during the write, as a sweep does") from err


def _sweep_tree(root: Path) -> None:
    for folder, _, files in os.walk(root, topdown=False):
        for name in filter(_LEFTOVER.fullmatch, files):
            (Path(folder) / name).unlink(missing_ok=True)
        if not any(Path(folder).iterdir()):
            Path(folder).rmdir()


@contextmanager
def _beside(target: Path) -> Iterator[Path]:
    temporary = target.with_name(f"{target.name}#{uuid4().int}")
    try:
        yield temporary
    finally:
        temporary.unlink(missing_ok=True)


def _write_synced(path: Path, fill: Callable[[BinaryIO], None]) -> None:
    with path.open("xb", buffering=0) as out:
        fill(out)
        os.fsync(out.fileno())


def _copy_all(source: BinaryIO, out: BinaryIO) -> None:
    while chunk := source.read(_COPIED_BYTES):
        _write_all(out, chunk)  # a disk that is nearly full takes a part of a write and says so only there


def _write_all(out: BinaryIO, data: bytes | memoryview) -> None:
    """Write large data past the page cache where the file system and the memory's alignment allow it.

    That saves a copy in the kernel, a tenth of the processor's time is left, and is no slower on any disk
    tried: writes through the cache are held up at times until older ones are on disk.
    """
    rest = memoryview(data)
    if len(rest) >= _DIRECT_BYTES:
        rest = rest[_write_direct(out.fileno(), rest[: len(rest) - len(rest) % _ALIGNMENT]) :]
    while rest:
        rest = rest[out.write(rest) :]


def _write_direct(handle: int, data: memoryview) -> int:
    """Return how much was written; nothing, if the file system or the address forbids it."""
    flags = fcntl.fcntl(handle, fcntl.F_GETFL)
    num_written = 0
    try:
        fcntl.fcntl(handle, fcntl.F_SETFL, flags | os.O_DIRECT)
        while num_written < len(data) and num_written % _ALIGNMENT == 0:
            num_written += os.write(handle, data[num_written : num_written + _CHUNK_BYTES])
    except OSError as err:
        if err.errno != errno.EINVAL:
            raise
    finally:
        fcntl.fcntl(handle, fcntl.F_SETFL, flags)
    return num_written


def _read_all(handle: int, start: int, into: Sequence[memoryview]) -> int:
    """Fill the buffers; return the bytes read."""
    rest, num_read = [view for view in into if view], 0
    while rest:
        got = os.preadv(handle, rest[:_MOST_BUFFERS], start + num_read)
        if not got:
            break
        num_read += got
        while rest and got >= len(rest[0]):
            got -= len(rest.pop(0))
        if rest and got:
            rest[0] = rest[0][got:]
    return num_read


def _make_folder(folder: Path) -> None:
    """Make the folder and sync the parent of each one that is new, so that it survives power loss."""
    missing = [path for path in (folder, *folder.parents) if not path.exists()]
    for path in reversed(missing):
        path.mkdir(exist_ok=True)
        _sync_folder(path.parent)
    if not folder.is_dir():
        raise StoreError(f"{folder} is in the way of a folder")


def _sync_folder(folder: Path) -> None:
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
