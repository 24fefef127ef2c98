"""Answers one connection: workers of this node on the Unix socket, proven peers on the TCP port."""

import os
import socket

from varuna_runtime.spec import canonical
from varuna_runtime.spec.copies import Copy
from varuna_runtime.spec.errors import CopyGone, InvalidInput, VaultLost, VaultRefused
from varuna_runtime.vault.framing import receive_chunks, receive_frame, send_chunks, send_frame
from varuna_runtime.vault.keeping import Keeping
from varuna_runtime.vault.messages import Op, Reply, Request, Status

_SILENT_S = 3600.0  # a peer's connection without a word
_STUCK_S = 10.0  # a peer that takes or sends nothing in the middle of one


def serve_local(sock: socket.socket, keeping: Keeping, holder: int) -> None:
    """Answer a process of this node until it ends the connection."""
    while True:
        request = _request(sock)
        try:
            _answer_local(sock, keeping, holder, request)
        except (CopyGone, VaultRefused) as err:
            _say(sock, _failure(err))


def serve_remote(sock: socket.socket, keeping: Keeping, holder: int, job: str) -> None:
    """Answer a peer that has proven to belong to `job` until it ends the connection."""
    while True:
        sock.settimeout(_SILENT_S)
        request = _request(sock)
        sock.settimeout(_STUCK_S)
        try:
            if request.copy is not None and request.copy.job != job:
                raise VaultRefused(f"this connection belongs to {job}, not to {request.copy.job}")
            _answer_remote(sock, keeping, holder, job, request)
        except (CopyGone, VaultRefused) as err:
            _say(sock, _failure(err))


def _answer_local(sock: socket.socket, keeping: Keeping, holder: int, request: Request) -> None:
    match request.op:
        case Op.ALLOCATE:
            _allocate(sock, keeping, holder, request)
        case Op.BEGIN:
            with keeping.ledger() as ledger:
                ledger.begin(request.memory, holder)
            _say(sock, Reply(status=Status.OK))
        case Op.SEAL:
            record = receive_frame(sock)
            with keeping.ledger() as ledger:
                ledger.seal(request.memory, holder, _copy(request), record)
            _say(sock, Reply(status=Status.OK))
        case Op.LEND:
            _lend(sock, keeping, holder, request)
        case Op.GIVE_BACK:
            with keeping.ledger() as ledger:
                is_intact = ledger.give_back(request.memory, request.stamp, holder)
            _say(sock, Reply(status=Status.OK if is_intact else Status.GONE, reason="it was overwritten"))
        case _:
            _answer_any(sock, keeping, request.job, request)


def _answer_remote(sock: socket.socket, keeping: Keeping, holder: int, job: str, request: Request) -> None:
    match request.op:
        case Op.RECORD:
            with keeping.ledger() as ledger:
                loan = ledger.lend(_copy(request), holder)
                ledger.give_back(loan.memory, loan.stamp, holder)
            _say(sock, Reply(status=Status.OK), loan.record)
        case Op.FETCH:
            _fetch(sock, keeping, holder, request)
        case Op.STORE:
            _store(sock, keeping, holder, request)
        case _:
            _answer_any(sock, keeping, job, request)


def _answer_any(sock: socket.socket, keeping: Keeping, job: str, request: Request) -> None:
    match request.op:
        case Op.INVENTORY:
            with keeping.ledger() as ledger:
                copies = ledger.copies(job)
            _say(sock, Reply(status=Status.OK, copies=copies))
        case Op.RETIRE:
            with keeping.ledger() as ledger:
                ledger.retire(job, request.generation)
            _say(sock, Reply(status=Status.OK))
        case _:
            raise VaultRefused(f"{request.op} is not for this connection")


def _allocate(sock: socket.socket, keeping: Keeping, holder: int, request: Request) -> None:
    granted = keeping.allocate(request.job, request.generation, request.num_bytes, holder)
    if granted is None:
        _say(sock, Reply(status=Status.FULL, reason="over the limit of this vault"))
        return
    reply = Reply(status=Status.OK, memories=tuple(grant.memory for grant, _ in granted))
    descriptors = tuple(descriptor for _, descriptor in granted)
    send_frame(sock, canonical.dumps(reply), descriptors=descriptors)


def _lend(sock: socket.socket, keeping: Keeping, holder: int, request: Request) -> None:
    loan, descriptor = keeping.lend(_copy(request), holder)
    try:
        reply = Reply(status=Status.OK, memories=(loan.memory,), stamp=loan.stamp)
        send_frame(sock, canonical.dumps(reply), loan.record, descriptors=(descriptor,))
    finally:
        os.close(descriptor)


def _fetch(sock: socket.socket, keeping: Keeping, holder: int, request: Request) -> None:
    with keeping.reading(_copy(request), holder) as reading:
        first, size = request.offset, request.num_bytes
        if min(first, size) < 0 or first + size > len(reading.memory):
            raise VaultRefused(f"bytes {first} to {first + size} of a copy of {len(reading.memory)}")
        _say(sock, Reply(status=Status.OK))
        send_chunks(sock, reading.memory[first : first + size])
    is_intact = reading.is_intact
    _say(sock, Reply(status=Status.OK if is_intact else Status.GONE, reason="it was overwritten"))


def _store(sock: socket.socket, keeping: Keeping, holder: int, request: Request) -> None:
    record = receive_frame(sock)
    with keeping.receiving(_copy(request), record, holder) as memory:
        if memory is None:
            _say(sock, Reply(status=Status.FULL, reason="over the limit of this vault"))
            return
        _say(sock, Reply(status=Status.OK))
        receive_chunks(sock, memory)
    _say(sock, Reply(status=Status.OK))


def _request(sock: socket.socket) -> Request:
    try:
        return canonical.loads(Request, receive_frame(sock))
    except InvalidInput as err:
        raise VaultLost(f"it does not speak this protocol: {err}") from err


def _copy(request: Request) -> Copy:
    if request.copy is None:
        raise VaultRefused(f"{request.op} names no copy")
    return request.copy


def _failure(err: CopyGone | VaultRefused) -> Reply:
    status = Status.GONE if isinstance(err, CopyGone) else Status.REFUSED
    return Reply(status=status, reason=str(err))


def _say(sock: socket.socket, reply: Reply, *frames: bytes) -> None:
    send_frame(sock, canonical.dumps(reply), *frames)
