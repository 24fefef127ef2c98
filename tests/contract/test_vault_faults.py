"""A real vault with workers that die, donors that stop, wires that lie, and strangers on the port."""

import contextlib
import os
import signal
import socket
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.relay import at_byte, relay
from tests.support.vaults import SECRET, VaultProcess, a_copy, a_record, until, vault
from varuna_runtime.spec import canonical
from varuna_runtime.spec.copies import Copy, Vault
from varuna_runtime.spec.errors import CopyGone, VarunaError, VaultLost, VaultRefused
from varuna_runtime.vault import framing, handshake
from varuna_runtime.vault.client import RemoteVault
from varuna_runtime.vault.messages import Op, Reply, Request, Status
from varuna_runtime.vault.server import MOST_UNPROVEN

_SIZE = 3 << 20
_LARGE = 24 << 20  # more than the kernel takes on its way
_WORKER = """
import sys
from tests.support.vaults import a_copy, a_record
from varuna_runtime.vault.client import LocalVault
vault = LocalVault(sys.argv[1], "j")
first, second = vault.allocate(generation=1, rank=0, num_bytes=3 << 20)
first.memory[:] = b"1" * (3 << 20)
first.seal(a_record(a_copy(step=1, num_bytes=3 << 20)))
second.memory[:] = b"2" * (3 << 20)
second.seal(a_record(a_copy(step=2, num_bytes=3 << 20)))
first.begin()
first.memory[: 1 << 20] = b"3" * (1 << 20)
print("half", flush=True)
sys.stdin.read()
"""


def _stored(process: VaultProcess, *, num_bytes: int = _SIZE, **fields: int) -> Copy:
    copy = a_copy(num_bytes=num_bytes, **fields)
    with process.remote() as peer:
        peer.store(a_record(copy), memoryview(_contents(copy)))
    return copy


def _contents(copy: Copy) -> bytes:
    return bytes((copy.version.step * 31 + copy.rank * 7 + k) % 251 for k in range(1 << 10)) * (
        copy.num_bytes >> 10
    )


def _through(port: int, *, timeout_s: float = 10.0) -> RemoteVault:
    address = Vault(node="n", host="127.0.0.1", port=port)
    return RemoteVault(address, job="j", secret=SECRET, timeout_s=timeout_s)


def test_a_worker_killed_in_the_middle_of_a_copy_leaves_the_one_before() -> None:
    with vault() as process:
        worker = subprocess.Popen(
            [sys.executable, "-c", _WORKER, process.path], stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert worker.stdout is not None
        assert worker.stdout.readline() == b"half\n"
        worker.kill()
        worker.communicate()
        left = a_copy(step=2, num_bytes=_SIZE)
        with contextlib.closing(process.local()) as other:
            assert other.inventory() == (left,)
            with other.borrow(left) as borrowed:
                assert borrowed.memory == b"2" * _SIZE


def test_a_donor_killed_in_the_middle_is_lost_at_once() -> None:
    with vault() as process:
        copy = _stored(process, num_bytes=_LARGE)
        dying = at_byte(_LARGE // 2, lambda passing, place: process.kill())
        with relay(process.address.port, back=dying) as port, _through(port, timeout_s=60) as peer:
            with pytest.raises(VaultLost):
                peer.fetch(copy, 0, memoryview(bytearray(_LARGE)))
            with pytest.raises(VaultLost):
                peer.inventory()


def test_a_donor_that_stops_is_waited_for_no_longer_than_said() -> None:
    with vault() as process, process.remote(timeout_s=1.5) as peer:
        process.process.send_signal(signal.SIGSTOP)
        until(lambda: _is_stopped(process))
        with pytest.raises(VaultLost, match="does not answer"):
            peer.inventory()
        with pytest.raises(VaultLost, match=r"too long|does not answer"):
            process.remote(timeout_s=1.5)
        process.process.send_signal(signal.SIGCONT)
        with process.remote() as again:
            assert again.inventory() == ()


def _is_stopped(process: VaultProcess) -> bool:
    stats = [(task / "stat").read_text() for task in Path(f"/proc/{process.process.pid}/task").iterdir()]
    return all(stat.rpartition(")")[2].split()[0] == "T" for stat in stats)


def test_bytes_damaged_on_the_way_are_no_copy() -> None:
    def flip(passing: bytearray, place: int) -> None:
        passing[place] ^= 4

    with vault() as process:
        copy = _stored(process)
        with (
            relay(process.address.port, back=at_byte(_SIZE // 2, flip)) as port,
            _through(port) as peer,
            pytest.raises(VaultLost, match="damaged"),
        ):
            peer.fetch(copy, 0, memoryview(bytearray(_SIZE)))
        other = a_copy(rank=1, num_bytes=_SIZE)
        with (
            relay(process.address.port, forth=at_byte(_SIZE // 2, flip)) as port,
            _through(port) as peer,
            pytest.raises(VaultLost),
        ):
            peer.store(a_record(other), memoryview(_contents(other)))
        with process.remote() as peer:
            assert peer.inventory() == (copy,)


def test_a_sender_that_is_gone_in_the_middle_leaves_the_copy_before() -> None:
    with vault() as process:
        copy = _stored(process, step=1)
        newer = a_copy(step=2, num_bytes=_SIZE)

        def cut(passing: bytearray, place: int) -> None:
            raise ConnectionError

        with (
            relay(process.address.port, forth=at_byte(_SIZE // 2, cut)) as port,
            _through(port) as peer,
            pytest.raises(VaultLost),
        ):
            peer.store(a_record(newer), memoryview(_contents(newer)))
        with process.remote() as other:
            assert other.inventory() == (copy,)


def test_strangers_hold_nobody_up() -> None:
    with vault() as process, contextlib.ExitStack() as strangers:
        said = (b"GET / HTTP/1.1\r\n\r\n" * 9, b"\0" * 500, *(b"", b"vault/1\n\x00\x05") * 2 * MOST_UNPROVEN)
        for words in said:
            stranger = strangers.enter_context(socket.create_connection(("127.0.0.1", process.address.port)))
            with contextlib.suppress(OSError):
                stranger.sendall(words)
        with process.remote(timeout_s=30) as peer:
            assert peer.inventory() == ()
        until(lambda: _connections(process) < MOST_UNPROVEN + 10)


def _connections(process: VaultProcess) -> int:
    return sum("socket" in _link(entry) for entry in Path(f"/proc/{process.process.pid}/fd").iterdir())


def _memories(process: VaultProcess) -> int:
    links = (_link(entry) for entry in Path(f"/proc/{process.process.pid}/fd").iterdir())
    return len({link for link in links if "memfd" in link})


def _link(entry: Path) -> str:
    try:
        return str(entry.readlink())
    except FileNotFoundError:
        return ""


def _talking(process: VaultProcess) -> socket.socket:
    """A connection that has proven itself and then says what it likes."""
    sock = socket.create_connection(("127.0.0.1", process.address.port), 10)
    said = handshake.hello("j", os.urandom(handshake.NONCE_BYTES))
    sock.sendall(said)
    heard = framing.receive_exactly(sock, handshake.ANSWER_BYTES)
    sock.sendall(handshake.proof(SECRET, said, heard[: handshake.NONCE_BYTES]))
    return sock


@pytest.mark.parametrize(
    "request_",
    [
        Request(op=Op.ALLOCATE, job="j", num_bytes=1),
        Request(op=Op.ADMIT, job="k", secret="mine"),
        Request(op=Op.FORGET, job="j"),
        Request(op=Op.FETCH),
        Request(op=Op.FETCH, copy=a_copy(num_bytes=_SIZE), offset=-1, num_bytes=10),
        Request(op=Op.FETCH, copy=a_copy(num_bytes=_SIZE), offset=1, num_bytes=_SIZE),
        Request(op=Op.FETCH, copy=a_copy(num_bytes=_SIZE), offset=1, num_bytes=-1),
        Request(op=Op.FETCH, copy=a_copy(job="k"), num_bytes=1),
        Request(op=Op.GIVE_BACK, memory=1),
    ],
)
def test_a_peer_may_not_do_everything(request_: Request) -> None:
    with vault(jobs=("j", "k")) as process:
        copy = _stored(process)
        with _talking(process) as sock:
            framing.send_frame(sock, canonical.dumps(request_))
            reply = canonical.loads(Reply, framing.receive_frame(sock))
            assert reply.status is Status.REFUSED
            framing.send_frame(sock, canonical.dumps(Request(op=Op.INVENTORY)))
            assert canonical.loads(Reply, framing.receive_frame(sock)).copies == (copy,)


@pytest.mark.parametrize("said", [b"\xff\xff\xff\xff", b"\0\0\0\x02{}", b"\0\0\0\x03\xff\xfe\xfd"])
def test_a_peer_that_talks_nonsense_is_dropped(said: bytes) -> None:
    with vault() as process:
        with _talking(process) as sock:
            sock.sendall(said)
            assert sock.recv(1) == b""
        with process.remote() as peer:
            assert peer.inventory() == ()


def test_a_replayed_proof_opens_nothing() -> None:
    with vault() as process:
        heard: list[bytes] = []

        def listen(passing: bytes) -> bytes:
            heard.append(passing)
            return passing

        with relay(process.address.port, forth=listen) as port, _through(port) as peer:
            peer.inventory()
        with socket.create_connection(("127.0.0.1", process.address.port), 10) as sock:
            sock.sendall(b"".join(heard))
            framing.receive_exactly(sock, handshake.ANSWER_BYTES)
            with contextlib.suppress(ConnectionResetError):
                assert sock.recv(1) == b""


def test_memory_is_used_again_and_goes_with_its_job() -> None:
    with vault() as process:
        for step in range(6):
            _stored(process, step=step)
        assert _memories(process) == 2
        for generation in (1, 2, 3):
            with contextlib.closing(process.local()) as mine:
                assert mine.allocate(generation=generation, rank=0, num_bytes=_SIZE) is not None
                assert _memories(process) == 4
            until(lambda: _is_free(process))
        process.tell(Request(op=Op.FORGET, job="j"))
        until(lambda: _memories(process) == 0)


def _is_free(process: VaultProcess) -> bool:
    """The vault has seen that the last worker's connection ended."""
    return len(list(Path(f"/proc/{process.process.pid}/task").iterdir())) == 3


def test_many_at_once_get_what_they_ask_for() -> None:
    with vault() as process:
        copies = [_stored(process, rank=rank) for rank in range(3)]

        def fetch(number: int) -> None:
            copy = copies[number % 3]
            with process.remote(timeout_s=60) as peer:
                into = bytearray(_SIZE)
                for _ in range(5):
                    peer.fetch(copy, 0, memoryview(into))
                    assert into == _contents(copy)

        def store(rank: int) -> None:
            with process.remote(timeout_s=60) as peer:
                for step in range(5):
                    copy = a_copy(step=step, rank=rank, num_bytes=_SIZE)
                    peer.store(a_record(copy), memoryview(_contents(copy)))

        with ThreadPoolExecutor(8) as pool:
            jobs = [pool.submit(fetch, n) for n in range(6)] + [pool.submit(store, n) for n in (10, 11)]
            for job in jobs:
                job.result(60)
        with process.remote() as peer:
            assert [(c.rank, c.version.step) for c in peer.inventory() if c.rank >= 10] == [
                *((10, 3), (11, 3)),
                *((10, 4), (11, 4)),
            ]


def test_a_fetch_of_what_is_overwritten_meanwhile_is_no_copy() -> None:
    copy = a_copy(num_bytes=_LARGE)
    with vault() as process, contextlib.closing(process.local()) as mine:
        first, _ = mine.allocate(generation=1, rank=0, num_bytes=_LARGE) or pytest.fail("no memory")
        first.seal(a_record(copy))
        begun = at_byte(_LARGE // 2, lambda passing, place: first.begin())
        with (
            relay(process.address.port, back=begun) as port,
            _through(port) as peer,
            pytest.raises(CopyGone, match="overwritten"),
        ):
            peer.fetch(copy, 0, memoryview(bytearray(_LARGE)))


def test_a_vault_that_is_lost_says_so_in_every_call() -> None:
    with vault() as process, contextlib.closing(process.local()) as mine:
        first, _ = mine.allocate(generation=1, rank=0, num_bytes=_SIZE) or pytest.fail("no memory")
        process.kill()
        for call in (first.begin, mine.inventory, lambda: mine.retire(2)):
            with pytest.raises(VaultLost):
                call()
        first.memory[:] = b"x" * _SIZE  # what a staging thread may still be doing


def test_a_record_that_is_another_s_is_no_copy() -> None:
    copy = a_copy(num_bytes=_SIZE)
    with vault() as process, _talking(process) as sock:
        wrong = canonical.dumps(a_record(replace(copy, rank=3)))
        framing.send_frame(sock, canonical.dumps(Request(op=Op.STORE, copy=copy)), wrong)
        framing.receive_frame(sock)
        framing.send_chunks(sock, memoryview(_contents(copy)))
        framing.receive_frame(sock)
        with process.remote() as peer, pytest.raises(CopyGone, match="something else"):
            peer.record(copy)
        with contextlib.closing(process.local()) as mine, pytest.raises(CopyGone, match="something else"):
            mine.borrow(copy)


def test_a_vault_without_a_job_lets_nobody_in() -> None:
    with vault(jobs=()) as process, pytest.raises(VarunaError) as seen:
        process.remote()
    assert isinstance(seen.value, VaultLost | VaultRefused)
