"""A vault of another node, over TCP."""

import contextlib
import secrets
import socket
import threading
from collections.abc import Iterator
from types import TracebackType
from typing import Self

from varuna_runtime.spec import canonical
from varuna_runtime.spec.copies import Copy, CopyRecord, Vault
from varuna_runtime.spec.errors import CopyGone, InvalidInput, VaultLost, VaultRefused
from varuna_runtime.vault import clock, handshake
from varuna_runtime.vault.framing import (
    receive_chunks,
    receive_frame,
    receive_until,
    send_chunks,
    send_frame,
)
from varuna_runtime.vault.messages import Op, Reply, Request, Status


class RemoteVault:
    """One connection; thread-safe, one call at a time. After a VaultLost it is of no use any more."""

    def __init__(self, vault: Vault, *, job: str, secret: str, timeout_s: float) -> None:
        """Connect, and prove to each other that both belong to the job: VaultLost, VaultRefused.

        `timeout_s` bounds the beginning, and from then on each wait for the other end to go on.
        """
        self._vault = vault
        self._job = job
        self._lock = threading.Lock()
        with self._named():
            self._sock = _proven(vault, job, secret, timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, err: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def wait_at_most(self, timeout_s: float) -> None:
        """Bound each wait for the other end from now on."""
        with self._talking():
            try:
                self._sock.settimeout(timeout_s)
            except OSError as err:
                raise VaultLost(f"the connection is closed: {err}") from err

    def inventory(self) -> tuple[Copy, ...]:
        """Return the complete copies of the job that are there."""
        with self._talking():
            return self._ask(Request(op=Op.INVENTORY)).copies

    def record(self, copy: Copy) -> CopyRecord:
        """Return what is needed to read a copy; CopyGone."""
        with self._talking():
            self._ask(Request(op=Op.RECORD, copy=copy))
            text = receive_frame(self._sock)
        return read_record(text, copy)

    def fetch(self, copy: Copy, offset: int, into: memoryview) -> None:
        """Fill `into` with a copy's bytes from `offset` on.

        CopyGone: it is not there, or was overwritten meanwhile; VaultLost: also for damaged bytes.
        What `into` holds counts for nothing then.
        """
        target = into.cast("B")
        with self._talking():
            self._ask(Request(op=Op.FETCH, copy=copy, offset=offset, num_bytes=len(target)))
            receive_chunks(self._sock, target)
            check(_reply(self._sock))

    def store(self, record: CopyRecord, memory: memoryview) -> None:
        """Have it keep a copy, of a rank and generation the newest two; VaultRefused over its limit."""
        source = memory.cast("B")[: record.copy.num_bytes]
        with self._talking():
            send_frame(
                self._sock,
                canonical.dumps(Request(op=Op.STORE, copy=record.copy)),
                canonical.quick_dumps(record),
            )
            check(_reply(self._sock))
            send_chunks(self._sock, source)
            check(_reply(self._sock))

    def retire(self, before_generation: int) -> None:
        """Have it drop the job's copies of older generations."""
        with self._talking():
            self._ask(Request(op=Op.RETIRE, generation=before_generation))

    def close(self) -> None:
        """End the connection; idempotent. A call under way in another thread ends with VaultLost."""
        with contextlib.suppress(OSError):
            self._sock.shutdown(socket.SHUT_RDWR)
        self._sock.close()

    def _ask(self, request: Request) -> Reply:
        send_frame(self._sock, canonical.dumps(request))
        return check(_reply(self._sock))

    @contextlib.contextmanager
    def _talking(self) -> Iterator[None]:
        """One call; a conversation that broke off in the middle is never gone on with."""
        with self._lock, self._named():
            try:
                yield
            except (CopyGone, VaultRefused):
                raise
            except BaseException:
                self.close()
                raise

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        try:
            yield
        except (VaultLost, VaultRefused) as err:
            raise type(err)(f"vault of node {self._vault.node}: {err}") from err


def check(reply: Reply) -> Reply:
    """Return a reply that says yes; raises what else it says."""
    match reply.status:
        case Status.OK:
            return reply
        case Status.GONE:
            raise CopyGone(reply.reason)
        case Status.FULL | Status.REFUSED:
            raise VaultRefused(reply.reason)


def read_record(text: bytes, copy: Copy) -> CopyRecord:
    """Return the record of `copy`; CopyGone for one that is not: whoever wrote it, nothing of it is used."""
    try:
        record = canonical.loads(CopyRecord, text)
    except InvalidInput as err:
        raise CopyGone(f"the record of rank {copy.rank} at {copy.version} makes no sense: {err}") from err
    fits = all(0 <= t.offset <= t.offset + t.num_bytes <= copy.num_bytes for t in record.tensors)
    if record.copy != copy or record.trainer.step != copy.version.step or not fits:
        raise CopyGone(f"the record of rank {copy.rank} at {copy.version} belongs to something else")
    return record


def _proven(vault: Vault, job: str, secret: str, timeout_s: float) -> socket.socket:
    deadline_s = clock.now_s() + timeout_s
    try:
        sock = socket.create_connection((vault.host, vault.port), timeout_s)
    except OSError as err:
        raise VaultLost(f"{vault.host}:{vault.port} cannot be reached: {err}") from err
    try:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        said = handshake.hello(job, secrets.token_bytes(handshake.NONCE_BYTES))
        sock.sendall(said)
        heard = receive_until(sock, handshake.ANSWER_BYTES, deadline_s)
        if not handshake.is_answer(secret, said, heard):
            raise VaultRefused(f"what listens there does not know the secret of {job}")
        sock.sendall(handshake.proof(secret, said, heard[: handshake.NONCE_BYTES]))
        sock.settimeout(timeout_s)
    except OSError as err:
        sock.close()
        raise VaultLost(f"the connection broke: {err}") from err
    except BaseException:
        sock.close()
        raise
    return sock


def _reply(sock: socket.socket) -> Reply:
    try:
        return canonical.loads(Reply, receive_frame(sock))
    except InvalidInput as err:
        raise VaultLost(f"it does not speak this protocol: {err}") from err
