"""The store on a file system: obstore reads, our own writes, since its LocalStore never calls fsync."""

import os
import re
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO
from uuid import uuid4

from obstore.store import LocalStore

from varuna_runtime.spec.errors import ObjectMissing, StoreError
from varuna_runtime.store.objects import ObjectStore, checked, translated

_LEFTOVER = re.compile(r".*#\d+")  # a name obstore's LocalStore never lists


class FileStore(ObjectStore):
    """A Store in a folder; an object is written beside its place, synced, then moved or linked into it."""

    def __init__(self, root: Path) -> None:
        with translated(str(root)):
            root.mkdir(parents=True, exist_ok=True)
            super().__init__(LocalStore(root))
        self._root = root

    def put(self, key: str, data: bytes) -> None:
        """See Store."""
        self._write(key, lambda out: _write_all(out, data), os.replace)

    def put_if_absent(self, key: str, data: bytes) -> None:
        """See Store."""
        self._write(key, lambda out: _write_all(out, data), os.link)

    def put_file(self, key: str, path: Path) -> None:
        """See Store."""
        with path.open("rb") as source:
            self._write(key, lambda out: shutil.copyfileobj(source, out), os.replace)

    def sizes(self, prefix: str) -> dict[str, int]:
        """See Store; obstore fails where a file stands in the place of the folder."""
        is_empty = prefix and not (self._root / checked(prefix)).is_dir()
        return {} if is_empty else super().sizes(prefix)

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
                    place(temporary, target)
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
    with path.open("xb") as out:
        fill(out)
        out.flush()
        os.fsync(out.fileno())


def _write_all(out: BinaryIO, data: bytes) -> None:
    out.write(data)


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
