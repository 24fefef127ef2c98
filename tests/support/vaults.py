"""Real vault processes, and copies to put into them."""

import contextlib
import os
import socket
import subprocess
import threading
import time
import uuid
from collections.abc import Iterator

from varuna_runtime.spec import canonical
from varuna_runtime.spec.copies import CopiedTensor, Copy, CopyRecord, Vault, Version
from varuna_runtime.spec.manifest import TrainerState
from varuna_runtime.vault.client import LocalVault, RemoteVault
from varuna_runtime.vault.framing import receive_frame, send_frame
from varuna_runtime.vault.messages import Held, Op, Request
from varuna_runtime.vault.starting import command, open_doors

SECRET = "a secret of the job"


class VaultProcess:
    """A vault started as an agent does; `held` is what it says of the jobs it has copies of."""

    def __init__(self, *, limit_bytes: int = 64 << 20, jobs: tuple[str, ...] = ("j",)) -> None:
        self.doors = open_doors("127.0.0.1", uuid.uuid4().hex)
        self._limit_bytes = limit_bytes
        self.start()
        for job in jobs:
            self.tell(Request(op=Op.ADMIT, job=job, secret=SECRET))
        until(lambda: all(self._is_served(job) for job in jobs))

    def start(self) -> None:
        self._control, theirs = socket.socketpair()
        with theirs:
            words = command(self.doors, theirs, agent=os.getpid(), limit_bytes=self._limit_bytes)
            passed = (theirs.fileno(), self.doors.local.fileno(), self.doors.remote.fileno())
            self.process = subprocess.Popen(words, pass_fds=passed)
        self.held = self._hear()
        self._listening = threading.Thread(target=self._listen, daemon=True)
        self._listening.start()

    @property
    def path(self) -> str:
        return self.doors.path

    @property
    def address(self) -> Vault:
        return Vault(node="n", host="127.0.0.1", port=self.doors.port)

    def local(self, job: str = "j") -> LocalVault:
        return LocalVault(self.path, job)

    def remote(self, job: str = "j", *, secret: str = SECRET, timeout_s: float = 10.0) -> RemoteVault:
        return RemoteVault(self.address, job=job, secret=secret, timeout_s=timeout_s)

    def tell(self, request: Request) -> None:
        send_frame(self._control, canonical.dumps(request))

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()

    def end(self) -> int:
        self._hang_up()
        self.doors.close()
        return self.process.wait(10)

    def _hang_up(self) -> None:
        with contextlib.suppress(OSError):
            self._control.shutdown(socket.SHUT_RDWR)
        self._listening.join(10)
        self._control.close()

    def _is_served(self, job: str) -> bool:
        with contextlib.closing(self.local(job)) as vault:
            with contextlib.suppress(Exception):
                vault.inventory()
                return True
            return False

    def _hear(self) -> tuple[str, ...]:
        return canonical.loads(Held, receive_frame(self._control)).jobs

    def _listen(self) -> None:
        with contextlib.suppress(Exception):
            while True:
                self.held = self._hear()


@contextlib.contextmanager
def vault(*, limit_bytes: int = 64 << 20, jobs: tuple[str, ...] = ("j",)) -> Iterator[VaultProcess]:
    process = VaultProcess(limit_bytes=limit_bytes, jobs=jobs)
    try:
        yield process
    finally:
        process.kill()
        process.end()


def a_copy(
    *, job: str = "j", step: int = 1, generation: int = 1, rank: int = 0, num_bytes: int = 1000
) -> Copy:
    version = Version(step=step, generation=generation)
    return Copy(
        job=job,
        version=version,
        rank=rank,
        replica=0,
        replicas=1,
        segments=(rank,),
        is_shared=False,
        num_bytes=num_bytes,
    )


def a_record(copy: Copy) -> CopyRecord:
    tensor = CopiedTensor(
        segment=copy.rank,
        name="param:w",
        shape=(copy.num_bytes,),
        dtype="U8",
        offset=0,
        num_bytes=copy.num_bytes,
    )
    trainer = TrainerState(
        step=copy.version.step, optimizer_groups="", scheduler="", stream_cursor="", losses=()
    )
    return CopyRecord(copy=copy, tensors=(tensor,), trainer=trainer)


def until(holds, *, within_s: float = 20.0) -> None:  # type: ignore[no-untyped-def]
    deadline_s = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline_s, "it did not come to that"
        time.sleep(0.01)
