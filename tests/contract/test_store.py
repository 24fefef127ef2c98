"""Every implementation of Store behaves the same."""

import itertools
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clouds.azurite import Azurite, azurite
from tests.support.clouds.fake_gcs import FakeGcs
from tests.support.clouds.moto import IDENTITY, Moto
from varuna_runtime.spec.errors import ObjectExists, ObjectMissing, StoreRefused
from varuna_runtime.store import Store, open_store

PREFIXES = itertools.count()


@pytest.fixture(scope="module")
def blobs() -> Iterator[Azurite]:
    with azurite() as server:
        server.make_container("contract")
        yield server


@pytest.fixture(scope="module")
def buckets() -> Iterator[Moto]:
    with Moto() as server:
        server.client("s3").create_bucket(Bucket="contract")
        yield server


@pytest.fixture(scope="module")
def google() -> Iterator[FakeGcs]:
    with FakeGcs() as server:
        yield server


@pytest.fixture(params=["file", "memory", "s3", "az", "gs"])
def store(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
    """One that nobody else uses; the clouds' are found as anywhere, by the environment."""
    match request.param:
        case "file":
            return open_store(f"file://{tmp_path}/store")
        case "memory":
            return open_store("memory://")
        case "s3":
            url = request.getfixturevalue("buckets").url
            environment = {**IDENTITY, "AWS_ENDPOINT_URL": url, "AWS_ALLOW_HTTP": "true"}
        case "az":
            environment = request.getfixturevalue("blobs").environment
        case "gs":
            environment = request.getfixturevalue("google").environment
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return open_store(f"{request.param}://contract/{next(PREFIXES)}")


def test_what_was_put_is_returned_whole(store: Store) -> None:
    store.put("a/b.bin", b"\x00\x01" * 1000)
    assert store.get("a/b.bin") == b"\x00\x01" * 1000
    assert store.size("a/b.bin") == 2000


def test_a_put_replaces_the_older_object(store: Store) -> None:
    store.put("a", b"old and long")
    store.put("a", b"new")
    assert store.get("a") == b"new"


def test_an_empty_object_is_an_object(store: Store) -> None:
    store.put("empty", b"")
    assert store.get("empty") == b""
    assert store.exists("empty")


def test_put_if_absent_refuses_and_keeps_the_first_object(store: Store) -> None:
    store.put_if_absent("a/b", b"first")
    with pytest.raises(ObjectExists, match="a/b"):
        store.put_if_absent("a/b", b"second")
    assert store.get("a/b") == b"first"


def test_of_racing_put_if_absent_one_wins(store: Store) -> None:
    won: list[int] = []

    def race(index: int) -> None:
        try:
            store.put_if_absent("race", str(index).encode())
        except ObjectExists:
            return
        won.append(index)

    threads = [threading.Thread(target=race, args=(index,)) for index in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [str(index).encode() for index in won] == [store.get("race")]


def test_a_missing_object_is_named(store: Store) -> None:
    for call in (store.get, store.size, lambda key: store.get_range(key, 0, 1)):
        with pytest.raises(ObjectMissing, match="no/such"):
            call("no/such")
    assert not store.exists("no/such")


def test_ranges_stop_at_the_end_of_the_object(store: Store) -> None:
    store.put("r", b"0123456789")
    assert store.get_range("r", 2, 3) == b"234"
    assert store.get_range("r", 8, 100) == b"89"
    assert store.get_range("r", 10, 5) == b""


def test_bytes_are_read_into_buffers_one_after_the_other(store: Store) -> None:
    store.put("r", b"0123456789")
    first, second, third = bytearray(3), bytearray(0), bytearray(4)
    assert store.read_into("r", 2, [memoryview(first), memoryview(second), memoryview(third)]) == 7
    assert (first, third) == (b"234", b"5678")
    beyond = bytearray(5)
    assert store.read_into("r", 8, [memoryview(beyond)]) == 2
    assert beyond == b"89\0\0\0"
    with pytest.raises(ObjectMissing, match="no/such"):
        store.read_into("no/such", 0, [memoryview(beyond)])


def test_memory_is_put_without_being_bytes(store: Store) -> None:
    data = bytearray(b"0123456789" * 300_000)
    store.put("m", memoryview(data)[5:])
    assert store.get("m") == data[5:]


def test_nothing_is_nearer_than_the_store(store: Store) -> None:
    store.put("n", b"x")
    assert not store.distrust("n")
    assert store.get("n") == b"x"


def test_list_is_sorted_and_by_whole_segments(store: Store) -> None:
    for key in ("jobs/b/2", "jobs/a/10", "jobs/a/02", "jobs/ab/1", "other"):
        store.put(key, key.encode())
    assert store.list("jobs/a") == ("jobs/a/02", "jobs/a/10")
    assert store.list("") == ("jobs/a/02", "jobs/a/10", "jobs/ab/1", "jobs/b/2", "other")
    assert store.list("none") == ()
    assert store.sizes("jobs/b") == {"jobs/b/2": 8}


def test_delete_is_idempotent(store: Store) -> None:
    store.put("a/b", b"x")
    store.delete(["a/b", "a/never"])
    store.delete(["a/b"])
    assert store.list("") == ()


def test_files_are_stored_and_fetched(store: Store, tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "target"
    source.write_bytes(b"0123456789" * 200_000)
    store.put_file("f/big", source)
    store.get_file("f/big", target)
    assert target.read_bytes() == source.read_bytes()
    with pytest.raises(ObjectMissing):
        store.get_file("f/none", target)


@pytest.mark.parametrize("key", ["../x", "a/../b", "/a", "a//b", "a/", "", "a b", "a#1", ".hidden", "a\n"])
def test_a_key_that_leaves_the_store_is_refused(store: Store, key: str) -> None:
    with pytest.raises(StoreRefused, match="store key"):
        store.put(key, b"x")
    with pytest.raises(StoreRefused, match="store key"):
        store.get(key)


def test_sweep_keeps_objects(store: Store) -> None:
    store.put("a/b/c", b"x")
    store.sweep("a", before="z")
    store.sweep("nothing/there", before="z")
    assert store.get("a/b/c") == b"x"


def test_a_prefix_of_objects_is_no_object(store: Store) -> None:
    store.put("a/b/c", b"x")
    assert not store.exists("a/b")
    into = [memoryview(bytearray(1))]
    reads = (lambda key: store.get_range(key, 0, 1), lambda key: store.read_into(key, 0, into))
    for call in (store.get, store.size, *reads):
        with pytest.raises(ObjectMissing):
            call("a/b")
    store.delete(["a/b"])
    assert store.list("a") == ("a/b/c",)


def test_a_prefix_may_also_name_an_object(store: Store) -> None:
    store.put("a", b"x")
    assert store.list("a") == ()
    assert store.list("a/b") == ()
