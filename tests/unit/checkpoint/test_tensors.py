"""Who writes which tensor, and loading at another layout."""

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from obstore.store import MemoryStore

from tests.support.checkpoints import Ranks, equal, model_record, saved, state
from varuna_runtime.checkpoint import newest_complete, read_manifest
from varuna_runtime.checkpoint.tensors import HostCopies, load_segments, part_of
from varuna_runtime.spec.errors import CheckpointRefused
from varuna_runtime.spec.layout import Layout
from varuna_runtime.store import Store, open_store
from varuna_runtime.store.objects import ObjectStore


@pytest.fixture
def store() -> Store:
    return open_store("memory://")


@given(
    sizes=st.lists(st.lists(st.integers(0, 50), max_size=6), max_size=4),
    replicas=st.integers(1, 5),
)
def test_parts_hold_each_tensor_once_and_are_balanced(sizes: list[list[int]], replicas: int) -> None:
    tensors = {i: {f"{i}.{j}": torch.zeros(n) for j, n in enumerate(held)} for i, held in enumerate(sizes)}
    parts = [part_of(tensors, replicas=replicas, replica=replica) for replica in range(replicas)]
    names = sorted(name for part in parts for held in part.values() for name in held)
    assert names == sorted(name for held in tensors.values() for name in held)
    loads = [sum(t.nbytes for held in part.values() for t in held.values()) for part in parts]
    assert max(loads) - min(loads) <= 4 * max((n for held in sizes for n in held), default=0)


def test_a_split_depends_on_names_and_sizes_only() -> None:
    first, second = state(model_record(), seed=1), state(model_record(), seed=2)
    shuffled = {i: dict(reversed(second[i].items())) for i in sorted(second, reverse=True)}
    for replica in range(3):
        left = part_of(first, replicas=3, replica=replica)
        right = part_of(shuffled, replicas=3, replica=replica)
        assert {i: set(held) for i, held in left.items()} == {i: set(held) for i, held in right.items()}


@settings(max_examples=15, deadline=None)
@given(
    num_segments=st.integers(1, 5),
    stages=st.integers(1, 4),
    replicas=st.integers(1, 4),
    seed=st.integers(0, 1000),
)
def test_what_any_layout_saved_is_loaded_by_segment(
    num_segments: int, stages: int, replicas: int, seed: int
) -> None:
    store, model = open_store("memory://"), model_record(num_segments)
    values = state(model, seed)
    layout = Layout(stages=min(stages, num_segments), replicas=replicas)
    ranks = Ranks(store, layout=layout, model=model)
    assert ranks.save(3, values)
    ranks.close()
    manifest = newest_complete(store, "job", verify=True, model=model)
    assert manifest is not None
    for segment in range(num_segments):
        assert equal(load_segments(store, manifest, [segment], "cpu"), {segment: values[segment]})


def test_only_the_shards_of_the_segments_asked_for_are_read() -> None:
    class Counting(ObjectStore):
        reads: list[str] = []

        def get(self, key: str) -> bytes:
            self.reads.append(key)
            return super().get(key)

    store = Counting(MemoryStore())
    saved(store, 1)
    manifest = read_manifest(store, "job", 1)
    store.reads.clear()
    load_segments(store, manifest, [1], "cpu")
    assert ["s00001" in key for key in store.reads] == [True]


def test_a_segment_without_tensors_comes_back_empty(store: Store) -> None:
    saved(store, 1)
    assert load_segments(store, read_manifest(store, "job", 1), [9], "cpu") == {9: {}}


def test_loaded_tensors_can_be_trained_on(store: Store) -> None:
    saved(store, 1)
    loaded = load_segments(store, read_manifest(store, "job", 1), [0], "cpu")
    before = loaded[0]["param:0.w0"].clone()
    assert loaded[0]["param:0.w0"].add_(1.0).equal(before + 1.0)


def test_a_damaged_shard_is_refused_by_key(store: Store) -> None:
    saved(store, 1)
    manifest = read_manifest(store, "job", 1)
    store.put(manifest.shards[0].key, b"x" * manifest.shards[0].num_bytes)
    with pytest.raises(CheckpointRefused, match=manifest.shards[0].key):
        load_segments(store, manifest, [0], "cpu")
    store.delete([manifest.shards[0].key])
    with pytest.raises(CheckpointRefused, match="missing"):
        load_segments(store, manifest, [0], "cpu")


def test_host_copies_are_reused_and_independent_of_the_source() -> None:
    source, copies = torch.arange(6.0).reshape(2, 3), HostCopies()
    first = copies.take({0: {"param:w": source.t()}})[0]["param:w"]
    source.zero_()
    assert first.tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    assert copies.take({0: {"param:w": source.t()}})[0]["param:w"] is first


def test_host_copies_follow_a_changed_shape() -> None:
    copies = HostCopies()
    copies.take({0: {"param:w": torch.zeros(2)}})
    assert copies.take({0: {"param:w": torch.ones(3)}})[0]["param:w"].tolist() == [1.0, 1.0, 1.0]
