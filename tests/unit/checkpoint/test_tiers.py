"""Shards on the node's own disk before the object store: faster where whole, never believed."""

from collections.abc import Sequence
from pathlib import Path

import pytest
from obstore.store import MemoryStore

from tests.support.checkpoints import equal, saved
from varuna_runtime.checkpoint import read_manifest
from varuna_runtime.checkpoint.manifests import check_shards
from varuna_runtime.checkpoint.tensors import load_segments
from varuna_runtime.spec.errors import CheckpointRefused
from varuna_runtime.store.objects import ObjectStore
from varuna_runtime.store.tiered import TieredStore


class Behind(ObjectStore):
    """Counts what is read from behind the network."""

    num_reads = 0

    def read_into(self, key: str, start: int, into: Sequence[memoryview]) -> int:
        self.num_reads += 1
        return super().read_into(key, start, into)


@pytest.fixture
def behind() -> Behind:
    return Behind(MemoryStore())


@pytest.fixture
def tiered(behind: Behind, tmp_path: Path) -> TieredStore:
    return TieredStore(behind, tmp_path / "near")


def near(tmp_path: Path) -> list[Path]:
    return sorted((tmp_path / "near").rglob("*.safetensors"))


def test_a_shard_of_this_node_is_not_fetched_again(behind: Behind, tiered: TieredStore) -> None:
    values = saved(tiered, 1)
    assert equal(load_segments(tiered, read_manifest(tiered, "job", 1), [0, 1], "cpu"), values)
    assert behind.num_reads == 0


def test_what_is_near_is_in_the_store_as_well(behind: Behind, tiered: TieredStore) -> None:
    values = saved(tiered, 1)
    assert equal(load_segments(behind, read_manifest(behind, "job", 1), [0, 1], "cpu"), values)


def test_another_nodes_shards_are_fetched(behind: Behind, tiered: TieredStore) -> None:
    values = saved(behind, 1)
    assert equal(load_segments(tiered, read_manifest(tiered, "job", 1), [0, 1], "cpu"), values)
    assert behind.num_reads


@pytest.mark.parametrize("damage", ["flipped", "truncated", "empty"])
def test_a_damaged_near_shard_is_dropped_and_fetched(
    behind: Behind, tiered: TieredStore, tmp_path: Path, damage: str
) -> None:
    values = saved(tiered, 1)
    for path in near(tmp_path):
        data = bytearray(path.read_bytes())
        data[-1] ^= damage == "flipped"
        path.write_bytes(data if damage == "flipped" else data[: -1 if damage == "truncated" else 0])
    manifest = read_manifest(tiered, "job", 1)
    assert equal(load_segments(tiered, manifest, [0, 1], "cpu"), values)
    check_shards(tiered, manifest)


def test_a_shard_that_is_damaged_everywhere_is_refused(behind: Behind, tiered: TieredStore) -> None:
    saved(tiered, 1)
    manifest = read_manifest(tiered, "job", 1)
    tiered.put(manifest.shards[0].key, b"x" * manifest.shards[0].num_bytes)
    with pytest.raises(CheckpointRefused, match="the checksum of"):
        load_segments(tiered, manifest, [0, 1], "cpu")


def test_only_the_newest_two_steps_of_two_jobs_are_near(tiered: TieredStore, tmp_path: Path) -> None:
    for job in ("first", "second", "third"):
        for step in (1, 2, 3):
            saved(tiered, step, job=job)
    kept = {path.relative_to(tmp_path / "near").parts[1:4:2] for path in near(tmp_path)}
    assert kept == {(job, f"{step:012d}") for job in ("second", "third") for step in (2, 3)}


def test_steps_that_a_job_has_gone_back_behind_are_not_near(tiered: TieredStore, tmp_path: Path) -> None:
    for step in (5, 6, 2, 3):
        saved(tiered, step)
    assert {int(path.relative_to(tmp_path / "near").parts[3]) for path in near(tmp_path)} == {2, 3}


def test_a_node_without_room_only_loses_speed(behind: Behind, tmp_path: Path) -> None:
    tiered = TieredStore(behind, tmp_path / "near")
    (tmp_path / "near" / "jobs").write_text("in the way")
    values = saved(tiered, 1)
    assert equal(load_segments(tiered, read_manifest(tiered, "job", 1), [0, 1], "cpu"), values)


def test_a_node_whose_folder_cannot_be_made_only_loses_speed(behind: Behind, tmp_path: Path) -> None:
    (tmp_path / "full").write_text("no folder")
    tiered = TieredStore(behind, tmp_path / "full" / "near")
    values = saved(tiered, 1)
    assert equal(load_segments(tiered, read_manifest(tiered, "job", 1), [0, 1], "cpu"), values)
