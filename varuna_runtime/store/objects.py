"""Stores behind obstore (S3, Azure Blob, GCS, memory): keys are checked, errors translated here."""

import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    InvalidPathError,
    NotSupportedError,
    PermissionDeniedError,
    UnauthenticatedError,
)
from obstore.store import ObjectStore as AnyStore

from varuna_runtime.spec.errors import ObjectExists, ObjectMissing, StoreError, StoreRefused

if TYPE_CHECKING:
    from obstore import GetOptions, ObjectMeta

_SEGMENT = r"[A-Za-z0-9_=+\-][A-Za-z0-9._=+\-]*"
_CHUNK_BYTES = 1 << 20
_PART_BYTES = 64 << 20  # a smaller object is cheaper in one request
_NUM_PARTS = 8  # at a time
_KEY = re.compile(rf"{_SEGMENT}(/{_SEGMENT})*")
_LASTING = (InvalidPathError, NotSupportedError, PermissionDeniedError, UnauthenticatedError, PermissionError)


def checked(key: str) -> str:
    """Return the key if every store can hold it; StoreRefused."""
    if not _KEY.fullmatch(key):
        wanted = "segments of letters, digits and ._=+- joined by /, none starting with a dot"
        raise StoreRefused(f"store key: seen {key!r}, wanted {wanted}")
    return key


@contextmanager
def translated(key: str) -> Iterator[None]:
    """Turn whatever obstore or the operating system raises for `key` into our StoreError."""
    try:
        yield
    except StoreError:
        raise
    except FileNotFoundError as err:
        raise ObjectMissing(f"no object {key}") from err
    except (AlreadyExistsError, FileExistsError) as err:
        raise ObjectExists(f"there is already an object {key}") from err
    except _LASTING as err:
        raise StoreRefused(f"{key}: {_first_line(err)}") from err
    except (BaseError, OSError, ValueError) as err:
        raise StoreError(f"{key}: {_first_line(err)}") from err


def _first_line(err: Exception) -> str:
    return str(err).partition("\n")[0] or type(err).__name__


def fill(into: Sequence[memoryview], chunks: Iterable[bytes]) -> int:
    """Copy chunks of any sizes into buffers of any sizes, one after the other; return the bytes copied."""
    buffers = iter(into)
    room = memoryview(b"")
    num_copied = 0
    for chunk in chunks:
        rest = memoryview(chunk)
        while rest:
            while not room:
                room = next(buffers)
            length = min(len(room), len(rest))
            room[:length] = rest[:length]
            room, rest, num_copied = room[length:], rest[length:], num_copied + length
    return num_copied


class ObjectStore:
    """A Store over one obstore instance, whose puts are atomic and durable by themselves."""

    def __init__(self, inner: AnyStore, uploader: AnyStore | None = None) -> None:
        """`uploader` is the same store for a client that gives large requests more time."""
        self._inner = inner
        self._uploader = uploader or inner

    @property
    def range_bytes(self) -> int:
        """See Store."""
        return 64 << 20

    @property
    def num_readers(self) -> int:
        """See Store."""
        return 4

    def put(self, key: str, data: bytes | memoryview) -> None:
        """See Store; large objects go in parts, several at a time."""
        with translated(key):
            obstore.put(
                self._inner if len(data) < _CHUNK_BYTES else self._uploader,
                checked(key),
                data,
                mode="overwrite",
                use_multipart=len(data) > _PART_BYTES,
                chunk_size=_PART_BYTES,
                max_concurrency=_NUM_PARTS,
            )

    def put_if_absent(self, key: str, data: bytes) -> None:
        """See Store."""
        with translated(key):
            obstore.put(self._inner, checked(key), data, mode="create")

    def put_file(self, key: str, path: Path) -> None:
        """See Store."""
        with path.open("rb") as source, translated(key):
            obstore.put(self._uploader, checked(key), source)

    def get(self, key: str) -> bytes:
        """See Store."""
        with translated(key):
            return bytes(obstore.get(self._inner, self._existing(key)).bytes())

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """See Store."""
        stop = min(start + length, self.size(key))
        if stop <= start:
            return b""
        with translated(key):
            return bytes(obstore.get_range(self._inner, self._existing(key), start=start, end=stop))

    def read_into(self, key: str, start: int, into: Sequence[memoryview]) -> int:
        """See Store; one request, whose answer is taken as it comes."""
        stop = start + sum(map(len, into))
        with translated(key):
            answer = obstore.get(self._inner, self._existing(key), options={"range": (start, stop)})
            return fill(into, answer.stream(min_chunk_size=_CHUNK_BYTES))

    def distrust(self, key: str) -> bool:
        """See Store; nothing is nearer."""
        return False

    def get_file(self, key: str, path: Path) -> None:
        """See Store; in several requests, since each has to end within a while."""
        with translated(key):
            num_bytes = self.size(key)
            with path.open("wb") as out:
                for start in range(0, num_bytes, _PART_BYTES):
                    options: GetOptions = {"range": (start, min(start + _PART_BYTES, num_bytes))}
                    for chunk in obstore.get(self._inner, self._existing(key), options=options).stream():
                        out.write(chunk)

    def size(self, key: str) -> int:
        """See Store."""
        with translated(key):
            return int(obstore.head(self._inner, self._existing(key))["size"])

    def exists(self, key: str) -> bool:
        """See Store."""
        try:
            self.size(key)
        except ObjectMissing:
            return False
        return True

    def list(self, prefix: str) -> tuple[str, ...]:
        """See Store."""
        return tuple(self.sizes(prefix))

    def sizes(self, prefix: str) -> dict[str, int]:
        """See Store."""
        return {path: int(meta["size"]) for path, meta in self._listed(prefix)}

    def written_at(self, prefix: str) -> dict[str, float]:
        """See Store."""
        return {path: meta["last_modified"].timestamp() for path, meta in self._listed(prefix)}

    def _listed(self, prefix: str) -> "Iterator[tuple[str, ObjectMeta]]":
        with translated(prefix):
            chunks = obstore.list(self._inner, checked(prefix) if prefix else None)
            found = [(str(meta["path"]), meta) for chunk in chunks for meta in chunk]
        yield from sorted(found, key=itemgetter(0))

    def delete(self, keys: Iterable[str]) -> None:
        """See Store."""
        for key in keys:
            try:
                with translated(key):
                    obstore.delete(self._inner, self._existing(key))
            except ObjectMissing:
                continue

    def sweep(self, folder: str, *, before: str) -> None:
        """Do nothing: such a store shows no half-written object."""

    def _existing(self, key: str) -> str:
        """Return the key of an object to read or delete; the store itself says when it is missing."""
        return checked(key)
