"""A real vault process and its clients, in shared memory and over TCP."""

import contextlib

import pytest

from tests.support.vaults import VaultProcess, a_copy, a_record, until, vault
from varuna_runtime.spec.copies import Copy
from varuna_runtime.spec.errors import CopyGone, VaultLost, VaultRefused

_SIZE = 3_000_000  # two chunks and a bit


def _bytes(seed: int, num_bytes: int = _SIZE) -> bytes:
    return bytes((seed * 7 + k) % 251 for k in range(1000)) * (num_bytes // 1000)


def _keep(process: VaultProcess, copy: Copy, contents: bytes) -> None:
    with contextlib.closing(process.local()) as mine:
        buffers = mine.allocate(generation=copy.version.generation, rank=copy.rank, num_bytes=copy.num_bytes)
        assert buffers is not None
        buffers[0].memory[:] = contents
        buffers[0].seal(a_record(copy))


def test_a_sealed_copy_outlives_its_worker_and_is_borrowed() -> None:
    copy = a_copy(num_bytes=_SIZE)
    with vault() as process:
        _keep(process, copy, _bytes(1))
        with contextlib.closing(process.local()) as other:
            assert other.inventory() == (copy,)
            with other.borrow(copy) as borrowed:
                assert borrowed.record == a_record(copy)
                assert borrowed.memory == _bytes(1)
                assert borrowed.memory.readonly


def test_a_copy_is_fetched_in_parts() -> None:
    copy = a_copy(num_bytes=_SIZE)
    with vault() as process:
        _keep(process, copy, _bytes(2))
        with process.remote() as peer:
            assert peer.inventory() == (copy,)
            assert peer.record(copy) == a_record(copy)
            into = bytearray(1_500_000)
            peer.fetch(copy, 1_200_000, memoryview(into))
            assert into == _bytes(2)[1_200_000:2_700_000]


def test_a_stored_copy_is_here_and_the_newest_two_stay() -> None:
    with vault() as process, process.remote() as peer:
        copies = [a_copy(step=step, num_bytes=_SIZE) for step in (1, 2, 3)]
        for copy in copies:
            peer.store(a_record(copy), memoryview(_bytes(copy.version.step)))
        assert peer.inventory() == tuple(copies[1:])
        with contextlib.closing(process.local()) as mine, mine.borrow(copies[2]) as borrowed:
            assert borrowed.memory == _bytes(3)


def test_a_buffer_that_is_filled_anew_is_no_copy() -> None:
    copy = a_copy(num_bytes=_SIZE)
    with vault() as process, contextlib.closing(process.local()) as mine:
        buffers = mine.allocate(generation=1, rank=0, num_bytes=_SIZE)
        assert buffers is not None
        buffers[0].seal(a_record(copy))
        buffers[0].begin()
        assert mine.inventory() == ()
        with pytest.raises(CopyGone):
            mine.borrow(copy)


def test_a_reader_learns_that_a_copy_was_overwritten() -> None:
    copy = a_copy(num_bytes=_SIZE)
    with vault() as process, contextlib.closing(process.local()) as mine:
        buffers = mine.allocate(generation=1, rank=0, num_bytes=_SIZE)
        assert buffers is not None
        buffers[0].seal(a_record(copy))
        with (
            contextlib.closing(process.local()) as other,
            pytest.raises(CopyGone, match="overwritten"),
            other.borrow(copy),
        ):
            buffers[0].begin()


def test_a_job_without_a_secret_here_is_refused() -> None:
    with vault() as process:
        with (
            contextlib.closing(process.local("other")) as mine,
            pytest.raises(VaultRefused, match="not served"),
        ):
            mine.inventory()
        with pytest.raises(VaultLost):
            process.remote("other")


def test_a_wrong_secret_is_refused() -> None:
    with vault() as process, pytest.raises(VaultRefused, match="secret"):
        process.remote(secret="a guess")


def test_over_the_limit_nothing_is_given() -> None:
    with vault(limit_bytes=2 * _SIZE) as process, contextlib.closing(process.local()) as mine:
        assert mine.allocate(generation=1, rank=0, num_bytes=_SIZE) is None
        assert mine.allocate(generation=1, rank=0, num_bytes=_SIZE // 2) is not None
        with process.remote() as peer:
            copy = a_copy(rank=1, num_bytes=_SIZE)
            with pytest.raises(VaultRefused, match="limit"):
                peer.store(a_record(copy), memoryview(_bytes(1)))
            assert peer.inventory() == ()  # and the connection goes on


def test_retired_generations_go_and_come_no_more() -> None:
    old, new = a_copy(num_bytes=_SIZE), a_copy(generation=2, num_bytes=_SIZE)
    with vault() as process, process.remote() as peer:
        for copy in (old, new):
            peer.store(a_record(copy), memoryview(_bytes(1)))
        peer.retire(2)
        assert peer.inventory() == (new,)
        with pytest.raises(VaultRefused, match="retired"):
            peer.store(a_record(old), memoryview(_bytes(1)))


def test_the_agent_hears_of_which_jobs_there_are_copies() -> None:
    with vault() as process, process.remote() as peer:
        assert process.held == ()
        peer.store(a_record(a_copy(num_bytes=_SIZE)), memoryview(_bytes(1)))
        until(lambda: process.held == ("j",))
        peer.retire(2)
        until(lambda: process.held == ())


def test_a_vault_ends_with_its_agent() -> None:
    with vault() as process:
        assert process.end() == 0
