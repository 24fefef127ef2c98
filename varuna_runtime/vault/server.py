"""The vault's process: takes connections in, finds out who calls, and obeys the agent until that is gone.

A stranger on the port, however slow, holds nobody up.
"""

import contextlib
import os
import secrets
import select
import socket
import struct
import threading
import time
from collections.abc import Callable

from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import InvalidInput, VaultLost
from varuna_runtime.vault import clock, handshake
from varuna_runtime.vault.framing import peer_user, receive_frame, receive_until, send_frame
from varuna_runtime.vault.keeping import Keeping
from varuna_runtime.vault.messages import Held, Op, Request
from varuna_runtime.vault.serving import serve_local, serve_remote

MOST_UNPROVEN = 64  # connections at once that have not shown yet who they are
MOST_CONNECTIONS = 512  # of each kind
_PROOF_S = 5.0
_PAUSE_S = 0.1
_TELL_S = 5.0


class Server:
    """Serves until the agent's end of `control` is closed."""

    def __init__(
        self, *, local: socket.socket, remote: socket.socket, control: socket.socket, limit_bytes: int
    ) -> None:
        self._control = control
        self._keeping = Keeping(limit_bytes, self._tell)
        self._local = local
        self._remote = remote
        self._lock = threading.Lock()
        self._num_connections = 0
        self._unproven: list[socket.socket] = []  # oldest first
        self._proven = threading.Semaphore(MOST_CONNECTIONS)
        self._workers = threading.Semaphore(MOST_CONNECTIONS)

    def run(self) -> None:
        """Return once the agent is gone."""
        time_out = struct.pack("ll", int(_TELL_S), 0)
        self._control.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, time_out)
        with contextlib.suppress(VaultLost, InvalidInput):
            while select.select([self._control], [], [], 0)[0]:  # jobs that one before us was serving
                self._obey(canonical.loads(Request, receive_frame(self._control)))
            for listener, greet in ((self._local, self._greet_local), (self._remote, self._greet_remote)):
                threading.Thread(target=self._accept, args=(listener, greet), daemon=True).start()
            self._tell(())
            while True:
                self._obey(canonical.loads(Request, receive_frame(self._control)))

    def _obey(self, request: Request) -> None:
        with self._keeping.ledger() as ledger:
            match request.op:
                case Op.ADMIT:
                    ledger.admit(request.job, request.secret)
                case Op.FORGET:
                    ledger.forget(request.job)
                case Op.RETIRE if ledger.secret(request.job) is not None:
                    ledger.retire(request.job, request.generation)
                case _:
                    pass

    def _tell(self, jobs: tuple[str, ...]) -> None:
        try:
            send_frame(self._control, canonical.dumps(Held(jobs=jobs)))
        except VaultLost:  # half a message, or an agent that is gone: nothing here can be relied on any more
            os._exit(1)

    def _accept(self, listener: socket.socket, greet: Callable[[socket.socket, int], None]) -> None:
        while True:
            try:
                sock, _ = listener.accept()
            except OSError:  # it went away again, or no descriptor is free
                time.sleep(_PAUSE_S)
                continue
            threading.Thread(target=self._hold, args=(sock, greet), daemon=True).start()

    def _hold(self, sock: socket.socket, greet: Callable[[socket.socket, int], None]) -> None:
        with self._lock:
            self._num_connections += 1
            holder = self._num_connections
        try:
            with contextlib.suppress(VaultLost, OSError):
                greet(sock, holder)
        finally:
            with self._keeping.ledger() as ledger:
                ledger.leave(holder)
            sock.close()

    def _greet_local(self, sock: socket.socket, holder: int) -> None:
        sock.settimeout(None)  # the kernel ends it with the worker
        if peer_user(sock) == os.getuid() and self._workers.acquire(blocking=False):
            try:
                serve_local(sock, self._keeping, holder)
            finally:
                self._workers.release()

    def _greet_remote(self, sock: socket.socket, holder: int) -> None:
        self._wait_for_proof(sock)
        try:
            job = self._proven_job(sock)
        finally:
            with self._lock, contextlib.suppress(ValueError):
                self._unproven.remove(sock)
        if job is None or not self._proven.acquire(blocking=False):
            return
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
            serve_remote(sock, self._keeping, holder, job)
        finally:
            self._proven.release()

    def _wait_for_proof(self, sock: socket.socket) -> None:
        with self._lock:
            if len(self._unproven) >= MOST_UNPROVEN:
                with contextlib.suppress(OSError):
                    self._unproven.pop(0).shutdown(socket.SHUT_RDWR)
            self._unproven.append(sock)

    def _proven_job(self, sock: socket.socket) -> str | None:
        """Return the job that the other end has the secret of."""
        deadline_s = clock.now_s() + _PROOF_S
        start = receive_until(sock, handshake.HELLO_BYTES, deadline_s)
        length = handshake.name_bytes(start)
        if length is None:
            return None
        said = start + receive_until(sock, length, deadline_s)
        job = handshake.job_of(said)
        with self._keeping.ledger() as ledger:
            secret = None if job is None else ledger.secret(job)
        if secret is None:
            return None
        nonce = secrets.token_bytes(handshake.NONCE_BYTES)
        sock.sendall(handshake.answer(secret, said, nonce))
        heard = receive_until(sock, handshake.MAC_BYTES, deadline_s)
        return job if handshake.is_proof(secret, said, nonce, heard) else None
