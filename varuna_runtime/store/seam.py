"""The object store as the rest of the code sees it: whole objects under keys; knows no vendor."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol


class Store(Protocol):
    """Atomic whole objects; every call blocks and raises StoreError, of which the named kinds are expected.

    A key is segments joined by `/`, each of letters, digits and `._=+-`, none starting with a dot; a prefix
    is whole segments. A put that returned survives the loss of the process and of the machine.
    An instance may be shared by threads, but not with a forked child: open it after the fork.
    """

    @property
    def range_bytes(self) -> int:
        """How much one `read_into` should ask for: more costs no fewer requests, or leaves the cache."""

    @property
    def num_readers(self) -> int:
        """How many `read_into` at a time are worth it."""

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Write the object, replacing an older one; a reader sees either whole. Nothing is copied."""

    def put_if_absent(self, key: str, data: bytes) -> None:
        """Write the object unless there is one (ObjectExists); of several racing writers one wins."""

    def put_file(self, key: str, path: Path) -> None:
        """Like `put` with the content of a file, streamed."""

    def get(self, key: str) -> bytes:
        """Return the object; ObjectMissing."""

    def get_range(self, key: str, start: int, length: int) -> bytes:
        """Return `length` bytes from `start`, fewer at the end of the object; ObjectMissing."""

    def read_into(self, key: str, start: int, into: Sequence[memoryview]) -> int:
        """Fill the buffers one after the other with what the object holds from `start` on; ObjectMissing.

        Returns the bytes read, less than asked for only at the end of the object.
        """

    def distrust(self, key: str) -> bool:
        """Forget a nearer copy of an object, which turned out to be damaged; return whether there was one."""

    def get_file(self, key: str, path: Path) -> None:
        """Write the object to a file, streamed; the caller checks what it got. ObjectMissing."""

    def size(self, key: str) -> int:
        """Return the object's bytes; ObjectMissing."""

    def exists(self, key: str) -> bool:
        """Return whether there is an object."""

    def list(self, prefix: str) -> tuple[str, ...]:
        """Return the keys below a prefix, sorted; what a crashed writer left behind is not an object."""

    def sizes(self, prefix: str) -> dict[str, int]:
        """Return the bytes of each object below a prefix, by key, sorted."""

    def written_at(self, prefix: str) -> dict[str, float]:
        """Return when each object below a prefix was written, in Unix seconds by the store's own clock."""

    def delete(self, keys: Iterable[str]) -> None:
        """Delete in the order given; a missing object is fine."""

    def sweep(self, folder: str, *, before: str) -> None:
        """Drop what crashed writers left in the children of `folder` that sort before `before`.

        Objects stay. Only for children that nobody writes to any more.
        """
