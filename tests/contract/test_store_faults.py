"""What a store does when its server, its line or its disk fails in the middle."""

import itertools
import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.clouds.fault_proxy import FaultProxy, Rule, html_error
from tests.support.clouds.moto import IDENTITY, Moto
from varuna_runtime.spec.errors import ObjectExists, ObjectMissing, StoreError
from varuna_runtime.store import Store, open_store

PREFIXES = itertools.count()


@pytest.fixture(scope="module")
def line() -> Iterator[FaultProxy]:
    with Moto() as server:
        server.client("s3").create_bucket(Bucket="faults")
        with FaultProxy(server.url) as proxy:
            yield proxy


@pytest.fixture
def store(line: FaultProxy, monkeypatch: pytest.MonkeyPatch) -> Store:
    line.clear()
    environment = {**IDENTITY, "AWS_ENDPOINT_URL": line.url, "AWS_ALLOW_HTTP": "true"}
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return open_store(f"s3://faults/{next(PREFIXES)}")


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(html_error("PUT .*", status=503, times=2), id="a burst of 503"),
        pytest.param(html_error("PUT .*", status=500, times=1), id="an internal error"),
        pytest.param(Rule(operation="PUT .*", drops=True, times=1), id="a dropped connection"),
        pytest.param(Rule(operation="PUT .*", loses=True, times=1), id="a lost answer"),
        pytest.param(Rule(operation="PUT .*", delay_s=0.5, times=1), id="a slow answer"),
    ],
)
def test_a_put_outlives(rule: Rule, line: FaultProxy, store: Store) -> None:
    line.add(rule)
    store.put("a/b", b"content")
    assert store.get("a/b") == b"content"


@pytest.mark.parametrize(
    "rule",
    [
        pytest.param(html_error("GET .*", status=503, times=2), id="a burst of 503"),
        pytest.param(Rule(operation="GET .*", drops=True, times=1), id="a dropped connection"),
        pytest.param(Rule(operation="GET .*", loses=True, times=1), id="a lost answer"),
    ],
)
def test_a_read_into_memory_outlives(rule: Rule, line: FaultProxy, store: Store) -> None:
    store.put("a/b", b"0123456789")
    line.add(rule)
    first, second = bytearray(3), bytearray(4)
    assert store.read_into("a/b", 2, [memoryview(first), memoryview(second)]) == 7
    assert (first, second) == (b"234", b"5678")


@pytest.mark.parametrize("how", ["drops", "loses"])
def test_a_commit_whose_answer_is_lost_is_made_once(how: str, line: FaultProxy, store: Store) -> None:
    line.add(Rule(operation="PUT .*", times=1, drops=how == "drops", loses=how == "loses"))
    try:
        store.put_if_absent("manifest", b"ours")
    except ObjectExists:  # the caller looks whose it is: see `commit`
        assert how == "loses"
    assert store.get("manifest") == b"ours"
    with pytest.raises(ObjectExists):
        store.put_if_absent("manifest", b"theirs")
    assert store.get("manifest") == b"ours"


def test_of_an_upload_that_lost_a_part_nothing_is_to_be_seen(line: FaultProxy, store: Store) -> None:
    line.add(Rule(operation="PUT .*", where="partNumber=2", status=403))
    with pytest.raises(StoreError):
        store.put("large", bytes((64 << 20) + 1))
    assert store.list("") == ()
    with pytest.raises(ObjectMissing):
        store.get("large")
    line.heal()
    store.put("large", bytes((64 << 20) + 1))
    assert store.sizes("") == {"large": (64 << 20) + 1}


@pytest.mark.parametrize("num_bytes", [200_000, 3 << 20])
def test_a_disk_without_room_leaves_the_older_object(tmp_path: Path, num_bytes: int) -> None:
    store = open_store(f"file://{tmp_path}/store")
    store.put("a/b", b"older")
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StoreError, match="a/b"):
            store.put("a/b", bytes(num_bytes))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert store.get("a/b") == b"older"
    assert [path.name for path in (tmp_path / "store").rglob("*") if path.is_file()] == ["b"]


def test_a_file_for_which_there_is_no_room_is_not_put_in_part(tmp_path: Path) -> None:
    (tmp_path / "archive").write_bytes(bytes(100_001))
    store = open_store(f"file://{tmp_path}/store")
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(StoreError, match="bundle"):
            store.put_file("bundle", tmp_path / "archive")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))
    assert store.list("") == ()


def test_an_object_of_several_parts_is_downloaded_whole(store: Store, tmp_path: Path) -> None:
    content = bytes(range(256)) * (1 << 18) + b"and the rest"
    store.put("large", content)
    store.get_file("large", tmp_path / "large")
    assert (tmp_path / "large").read_bytes() == content
