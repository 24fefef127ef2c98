"""Bundles: a working directory as an archive in the store, named by its hash, unpacked in its folder only."""

import gzip
import hashlib
import os
import stat
import tarfile
import tempfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import NoReturn

from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.store.seam import Store

IGNORE_FILE = ".varunaignore"
LIMIT_BYTES = 256 * 2**20  # of the files before compression, and of what a bundle may unpack to
_ALWAYS_IGNORED = (".git", ".hg", ".svn", ".venv", ".varuna", "__pycache__", "*.pyc")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """A working directory in the store."""

    sha256: str
    num_files: int
    num_bytes: int  # of the files, before compression


@dataclass(frozen=True, slots=True, kw_only=True)
class _Entry:
    path: Path
    name: str  # relative, with /
    num_bytes: int


def bundle_key(sha256: str) -> str:
    """Key of a bundle."""
    return f"bundles/{sha256}.tar.gz"


@contextmanager
def packed(workdir: Path, *, limit_bytes: int = LIMIT_BYTES) -> Iterator[tuple[Bundle, Path]]:
    """Pack `workdir` into an archive that lasts as long as the context; equal contents give equal bytes.

    Left out: empty folders, version control, `.venv`, caches and what `.varunaignore` names (one shell
    pattern a line, for the name, or for the path from `workdir` if it has a `/`; `#` starts a comment).
    InvalidInput when the folder is too large, cannot be read, or holds what is no file, folder or inner link.
    """
    entries = _entries(workdir, limit_bytes)
    with tempfile.TemporaryDirectory(prefix="varuna-bundle-") as folder:
        archive = Path(folder) / "bundle.tar.gz"
        try:
            _pack(entries, archive)
        except OSError as err:
            raise InvalidInput(f"workdir {workdir}: cannot be packed: {err}") from err
        num_bytes = sum(entry.num_bytes for entry in entries)
        yield Bundle(sha256=_digest(archive), num_files=len(entries), num_bytes=num_bytes), archive


def keep(store: Store, sha256: str, archive: Path) -> None:
    """Put an archive under its name unless it is there; InvalidInput when it is not what the name says."""
    if (seen := _digest(archive)) != sha256:
        raise InvalidInput(f"bundle {sha256}: its content has SHA-256 {seen}; submit the job again")
    if not store.exists(bundle_key(sha256)):
        store.put_file(bundle_key(sha256), archive)


def fetch(store: Store, sha256: str, parent: Path, *, limit_bytes: int = LIMIT_BYTES) -> Path:
    """Return the folder `parent/<sha256>` with the bundle's files, downloading it the first time.

    The folder appears whole or not at all. ObjectMissing when the store has no such bundle; InvalidInput when
    its content is not what the name says, or does not stay inside the folder.
    """
    target = parent / sha256
    if target.is_dir():
        return target
    parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=".incoming-", dir=parent) as folder:
        archive, tree = Path(folder) / "bundle.tar.gz", Path(folder) / "tree"
        store.get_file(bundle_key(sha256), archive)
        if (seen := _digest(archive)) != sha256:
            raise InvalidInput(f"bundle {sha256}: its content has SHA-256 {seen}; submit the job again")
        tree.mkdir()
        try:
            _unpack(archive, tree, limit_bytes)
        except (tarfile.TarError, zlib.error, EOFError, gzip.BadGzipFile) as err:
            raise InvalidInput(f"bundle {sha256}: {err}; submit the job again") from err
        _place(tree, target)
    return target


def _entries(workdir: Path, limit_bytes: int) -> list[_Entry]:
    """Return what belongs into the bundle, sorted by name."""
    if not workdir.is_dir():
        raise InvalidInput(f"workdir {workdir}: seen no folder there, wanted the one with the job's files")
    entries: list[_Entry] = []
    total_bytes = 0
    for path in _walk(workdir, _patterns(workdir)):
        entry = _entry(workdir, path)
        entries.append(entry)
        total_bytes += entry.num_bytes
        if total_bytes > limit_bytes:
            _refuse_size(workdir, entries, limit_bytes)
    return sorted(entries, key=lambda entry: entry.name)


def _patterns(workdir: Path) -> tuple[str, ...]:
    try:
        lines = (workdir / IGNORE_FILE).read_text().splitlines()
    except FileNotFoundError:
        return _ALWAYS_IGNORED
    except (OSError, ValueError) as err:
        raise InvalidInput(f"{workdir / IGNORE_FILE}: cannot be read: {err}") from err
    for number, line in enumerate(lines, 1):
        if line.startswith("!"):
            raise InvalidInput(
                f"{workdir / IGNORE_FILE}:{number}: seen {line!r}; exceptions are not supported"
            )
    wanted = (line.strip().strip("/") for line in lines if not line.startswith("#"))
    return (*_ALWAYS_IGNORED, *(pattern for pattern in wanted if pattern))


def _walk(workdir: Path, patterns: tuple[str, ...]) -> Iterator[Path]:
    def is_wanted(path: Path) -> bool:
        name = path.relative_to(workdir).as_posix()
        return not any(fnmatchcase(name if "/" in p else path.name, p) for p in patterns)

    def refuse(err: OSError) -> NoReturn:
        raise InvalidInput(f"workdir {workdir}: cannot be read: {err}") from err

    for folder, subfolders, files in os.walk(workdir, onerror=refuse):
        here = Path(folder)
        links = [name for name in subfolders if (here / name).is_symlink()]
        subfolders[:] = [name for name in subfolders if name not in links and is_wanted(here / name)]
        yield from (here / name for name in files + links if is_wanted(here / name))


def _entry(workdir: Path, path: Path) -> _Entry:
    status = path.lstat()
    name = path.relative_to(workdir).as_posix()
    if stat.S_ISREG(status.st_mode):
        return _Entry(path=path, name=name, num_bytes=status.st_size)
    if not stat.S_ISLNK(status.st_mode):
        raise InvalidInput(f"{path}: is neither file, folder nor link; name it in {IGNORE_FILE}")
    link = path.readlink()
    if link.is_absolute() or not _is_inside(path, workdir):
        raise InvalidInput(f"{path}: links to {link}, out of the workdir; name it in {IGNORE_FILE}")
    return _Entry(path=path, name=name, num_bytes=0)


def _is_inside(path: Path, workdir: Path) -> bool:
    try:
        return path.resolve().is_relative_to(workdir.resolve())
    except (OSError, RuntimeError):  # a link to itself
        return False


def _refuse_size(workdir: Path, entries: list[_Entry], limit_bytes: int) -> NoReturn:
    largest = sorted(entries, key=lambda entry: (-entry.num_bytes, entry.name))[:3]
    named = ", ".join(f"{entry.name} ({entry.num_bytes / 2**20:.1f} MiB)" for entry in largest)
    raise InvalidInput(
        f"workdir {workdir}: holds more than {limit_bytes / 2**20:.0f} MiB, with {named}; "
        f"name what the job does not need in {IGNORE_FILE}, and read data from elsewhere"
    )


def _pack(entries: list[_Entry], archive: Path) -> None:
    """Write the archive; its bytes are a function of names, contents and executable bits."""
    with (
        archive.open("wb") as raw,
        gzip.GzipFile(filename="", fileobj=raw, mode="wb", compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for entry in entries:
            _add(tar, entry)


def _add(tar: tarfile.TarFile, entry: _Entry) -> None:
    member = tarfile.TarInfo(entry.name)
    if entry.path.is_symlink():
        member.type, member.linkname, member.mode = tarfile.SYMTYPE, str(entry.path.readlink()), 0o777
        tar.addfile(member)
        return
    member.size = entry.num_bytes
    member.mode = 0o755 if entry.path.stat().st_mode & stat.S_IXUSR else 0o644
    with entry.path.open("rb") as source:
        tar.addfile(member, source)


def _unpack(archive: Path, tree: Path, limit_bytes: int) -> None:
    left_bytes = limit_bytes
    with tarfile.open(archive, mode="r:gz") as tar:
        for member in tar:
            left_bytes -= member.size
            if left_bytes < 0:
                raise InvalidInput(f"bundle: unpacks to more than {limit_bytes} bytes")
            if not (member.isreg() or member.issym()):
                raise InvalidInput(f"bundle: {member.name} is neither a file nor a link")
            tar.extract(member, tree, filter="data")


def _place(tree: Path, target: Path) -> None:
    try:
        tree.rename(target)
    except OSError:
        if not target.is_dir():  # another process was first otherwise
            raise


def _digest(path: Path) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()
