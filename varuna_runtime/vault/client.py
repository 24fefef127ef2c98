"""A worker's side of the vault of its own node, whose memory it shares; other nodes' are in `remote`."""

import contextlib
import mmap
import os
import socket
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from varuna_runtime.spec import canonical
from varuna_runtime.spec.copies import Copy, CopyRecord
from varuna_runtime.spec.errors import CopyGone, InvalidInput, VaultLost, VaultRefused
from varuna_runtime.vault.framing import receive_frame, receive_frame_with, send_frame, unix_address
from varuna_runtime.vault.messages import Op, Reply, Request, Status
from varuna_runtime.vault.remote import RemoteVault as RemoteVault
from varuna_runtime.vault.remote import check, read_record


class LocalVault:
    """One connection to the vault of this node; thread-safe. After a VaultLost it is of no use any more."""

    def __init__(self, path: str, job: str, *, timeout_s: float = 5.0) -> None:
        """Connect; `path` that begins with @ is no file. VaultLost."""
        self._job = job
        self._lock = threading.Lock()
        self._buffers: list[Buffer] = []
        self._sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._sock.settimeout(timeout_s)
        try:
            self._sock.connect(unix_address(path))
        except OSError as err:
            self._sock.close()
            raise VaultLost(f"the vault of this node cannot be reached at {path}: {err}") from err

    def allocate(self, *, generation: int, rank: int, num_bytes: int) -> "tuple[Buffer, Buffer] | None":
        """Return two buffers of so many bytes; None: over the vault's limit. VaultRefused, VaultLost.

        They may hold what earlier copies of the job left in them.
        """
        request = Request(
            op=Op.ALLOCATE, job=self._job, generation=generation, rank=rank, num_bytes=num_bytes
        )
        with self._talking():
            send_frame(self._sock, canonical.dumps(request))
            reply, descriptors = self._reply_with_descriptors()
            with _closing(descriptors):
                if reply.status is Status.FULL:
                    return None
                first, second = (
                    Buffer(self, number, mmap.mmap(descriptor, max(1, num_bytes)), num_bytes)
                    for number, descriptor in zip(check(reply).memories, descriptors, strict=True)
                )
        self._buffers += (first, second)
        return first, second

    def inventory(self) -> tuple[Copy, ...]:
        """Return the complete copies of the job that are here, those that others sent included."""
        return self.ask(Request(op=Op.INVENTORY, job=self._job)).copies

    def borrow(self, copy: Copy) -> "Borrowed":
        """Open a copy for reading; CopyGone. What it stands on is not used for anything new meanwhile."""
        with self._talking():
            send_frame(self._sock, canonical.dumps(Request(op=Op.LEND, job=self._job, copy=copy)))
            reply, descriptors = self._reply_with_descriptors()
            with _closing(descriptors):
                (number,) = check(reply).memories
                text = receive_frame(self._sock)
                mapping = mmap.mmap(descriptors[0], max(1, copy.num_bytes), access=mmap.ACCESS_READ)
        lent = Request(op=Op.GIVE_BACK, job=self._job, memory=number, stamp=reply.stamp)
        try:
            return Borrowed(self, read_record(text, copy), mapping, lent)
        except CopyGone:
            with contextlib.suppress(VaultLost, CopyGone):
                self.ask(lent)
            raise

    def retire(self, before_generation: int) -> None:
        """Drop the job's copies of older generations."""
        self.ask(Request(op=Op.RETIRE, job=self._job, generation=before_generation))

    def close(self) -> None:
        """End the connection; idempotent. Sealed copies stay; nothing may write into a buffer from now on."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()
        for buffer in self._buffers:
            buffer.close()
        self._buffers.clear()

    def ask(self, request: Request, *frames: bytes) -> Reply:
        """Return the vault's yes to a request without descriptors; raises what else it says."""
        with self._talking():
            send_frame(self._sock, canonical.dumps(request), *frames)
            return check(_read(receive_frame(self._sock)))

    def _reply_with_descriptors(self) -> tuple[Reply, tuple[int, ...]]:
        text, descriptors = receive_frame_with(self._sock)
        try:
            return _read(text), descriptors
        except VaultLost:
            for descriptor in descriptors:
                os.close(descriptor)
            raise

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        """One call; a conversation that broke off in the middle is never gone on with."""
        with self._lock:
            try:
                yield
            except (CopyGone, VaultRefused):
                raise
            except VaultLost as err:
                self._sock.close()
                raise VaultLost(f"vault of this node: {err}") from err
            except BaseException:
                self._sock.close()
                raise


class Buffer:
    """Memory that this process fills and the vault keeps; `memory` is writable and valid until close."""

    def __init__(self, vault: LocalVault, number: int, mapping: mmap.mmap, num_bytes: int) -> None:
        self._vault = vault
        self._number = number
        self._mapping = mapping
        self.memory = memoryview(mapping)[:num_bytes]

    def begin(self) -> None:
        """It is no copy from now on, and may be written to."""
        self._vault.ask(Request(op=Op.BEGIN, memory=self._number))

    def seal(self, record: CopyRecord) -> None:
        """It is complete: what `record` says. VaultRefused: its generation is retired, or its job over."""
        request = Request(op=Op.SEAL, memory=self._number, copy=record.copy)
        self._vault.ask(request, canonical.quick_dumps(record))

    def close(self) -> None:
        """Unmap it, or leave that to the last who still has a view of it."""
        with contextlib.suppress(BufferError):
            self.memory.release()
            self._mapping.close()


class Borrowed:
    """A copy open for reading, as a context manager: leaving it raises CopyGone if it was overwritten.

    Nothing may be read from `memory` after that.
    """

    def __init__(self, vault: LocalVault, record: CopyRecord, mapping: mmap.mmap, lent: Request) -> None:
        self._vault = vault
        self._mapping = mapping
        self._lent = lent
        self.record = record
        self.memory = memoryview(mapping)[: record.copy.num_bytes]  # read-only

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(BufferError):
            self.memory.release()
            self._mapping.close()
        if kind is None:
            self._vault.ask(self._lent)
        else:
            with contextlib.suppress(VaultLost, CopyGone):
                self._vault.ask(self._lent)


@contextlib.contextmanager
def _closing(descriptors: tuple[int, ...]) -> Iterator[None]:
    """Mappings keep descriptors of their own."""
    try:
        yield
    finally:
        for descriptor in descriptors:
            os.close(descriptor)


def _read(text: bytes) -> Reply:
    try:
        return canonical.loads(Reply, text)
    except InvalidInput as err:
        raise VaultLost(f"it does not speak this protocol: {err}") from err
