"""What retention deletes and, above all, what it keeps."""

from collections.abc import Iterable
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from tests.support.checkpoints import saved
from varuna_runtime.checkpoint import complete_steps, prune
from varuna_runtime.spec.errors import StoreError
from varuna_runtime.spec.manifest import checkpoint_prefix, manifest_key, shard_key
from varuna_runtime.store import Store, open_store
from varuna_runtime.store.local import FileStore
from varuna_runtime.store.objects import ObjectStore


@pytest.fixture
def store() -> Store:
    store = open_store("memory://")
    for step in (10, 20, 30, 40):
        saved(store, step)
    return store


def test_the_newest_steps_are_kept(store: Store) -> None:
    prune(store, "job", keep=2, generation=1, up_to=40)
    assert complete_steps(store, "job") == (30, 40)
    assert not store.list(checkpoint_prefix("job", 10))


def test_at_least_one_step_is_kept(store: Store) -> None:
    prune(store, "job", keep=0, generation=1, up_to=40)
    assert complete_steps(store, "job") == (40,)


def test_a_manifest_goes_before_its_shards(store: Store) -> None:
    deleted = prune(store, "job", keep=3, generation=1, up_to=40)
    assert deleted[0] == manifest_key("job", 10)
    assert len(deleted) == 3


def test_steps_above_the_committed_one_are_never_touched(store: Store) -> None:
    in_flight = shard_key("job", 25, 1, 0, 0)
    store.put(in_flight, b"half")
    prune(store, "job", keep=1, generation=1, up_to=20)
    assert complete_steps(store, "job") == (20, 30, 40)
    assert store.exists(in_flight)


def test_an_incomplete_step_does_not_count_as_kept(store: Store) -> None:
    store.put(manifest_key("job", 30), b"{")
    prune(store, "job", keep=2, generation=1, up_to=40)
    assert complete_steps(store, "job") == (20, 40)


def test_abandoned_shards_of_older_generations_go(store: Store) -> None:
    store.put(shard_key("job", 35, 1, 0, 0), b"half")
    store.put(shard_key("job", 30, 2, 0, 0), b"lost the race")
    prune(store, "job", keep=2, generation=2, up_to=40)
    assert not store.list(checkpoint_prefix("job", 35))
    assert not store.exists(shard_key("job", 30, 2, 0, 0))
    assert complete_steps(store, "job") == (30, 40)


def test_shards_of_a_younger_generation_stay(store: Store) -> None:
    store.put(shard_key("job", 35, 7, 0, 0), b"being written")
    prune(store, "job", keep=1, generation=2, up_to=40)
    assert store.exists(shard_key("job", 35, 7, 0, 0))


def test_pruning_again_changes_nothing(store: Store) -> None:
    prune(store, "job", keep=2, generation=1, up_to=40)
    assert prune(store, "job", keep=2, generation=1, up_to=40) == ()


class StoppingStore(ObjectStore):
    """Deletes `left` objects, then fails as a process that dies would."""

    def __init__(self, inner: MemoryStore, left: int) -> None:
        super().__init__(inner)
        self.left = left

    def delete(self, keys: Iterable[str]) -> None:
        for key in keys:
            if not self.left:
                raise StoreError("stopped")
            self.left -= 1
            super().delete([key])


@pytest.mark.parametrize("deletes", range(6))
def test_a_crash_between_any_two_deletes_shows_no_broken_step(deletes: int) -> None:
    store = StoppingStore(MemoryStore(), deletes)
    for step in (10, 20, 30):
        saved(store, step)
    with pytest.raises(StoreError, match="stopped"):
        prune(store, "job", keep=1, generation=1, up_to=30)
    manifests = [key for key in store.list("jobs") if key.endswith("manifest.json")]
    assert len(complete_steps(store, "job")) == len(manifests) >= 1
    store.left = 100
    prune(store, "job", keep=1, generation=1, up_to=30)
    assert {key.split("/")[3] for key in store.list("jobs")} == {"000000000030"}


def test_folders_and_leftovers_of_pruned_steps_go(tmp_path: Path) -> None:
    store = FileStore(tmp_path)
    for step in (10, 20):
        saved(store, step)
    leftover = tmp_path / f"{shard_key('job', 15, 1, 0, 0)}#7"
    leftover.parent.mkdir(parents=True)
    leftover.write_bytes(b"half")
    prune(store, "job", keep=1, generation=1, up_to=20)
    assert [path.name for path in (tmp_path / "jobs/job/checkpoints").iterdir()] == ["000000000020"]
