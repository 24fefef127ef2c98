"""Who writes which tensor, and loading at another layout."""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import hypothesis.strategies as st
import pytest
import torch
from hypothesis import given, settings
from obstore.store import MemoryStore
from safetensors.torch import load as decode

from tests.support.checkpoints import Ranks, equal, model_record, saved, state
from varuna_runtime.checkpoint import newest_complete, read_manifest
from varuna_runtime.checkpoint.images import Image, Images
from varuna_runtime.checkpoint.manifests import check_shards
from varuna_runtime.checkpoint.shards import ShardLabel, describe
from varuna_runtime.checkpoint.tensors import encode, iter_tensors, load_segments, part_of
from varuna_runtime.spec.errors import CheckpointRefused
from varuna_runtime.spec.layout import Layout
from varuna_runtime.spec.manifest import Manifest
from varuna_runtime.store import Store, open_store
from varuna_runtime.store.objects import ObjectStore

LABEL = ShardLabel(job="job", step=1, generation=2, segment=3, part=1)


def read_of(store: Store) -> Manifest:
    saved(store, 1)
    return read_manifest(store, "job", 1)


def filled(image: Image) -> Image:
    for target, source in image.pairs:
        target.copy_(source)
    return image


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

        def read_into(self, key: str, start: int, into: Sequence[memoryview]) -> int:
            self.reads.append(key)
            return super().read_into(key, start, into)

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


def test_an_image_is_taken_again_and_independent_of_the_source() -> None:
    source, images = torch.arange(6.0).reshape(2, 3), Images()
    first = filled(images.image(LABEL, {"param:w": source.t()}))
    source.zero_()
    assert decode(bytes(first.memory))["param:w"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]]
    again = filled(images.image(LABEL, {"param:w": source.t()}))
    assert again.pairs[0][0].data_ptr() == first.pairs[0][0].data_ptr()
    assert not decode(bytes(first.memory))["param:w"].any()


def test_an_image_follows_a_changed_shape() -> None:
    images = Images()
    filled(images.image(LABEL, {"param:w": torch.zeros(2)}))
    image = filled(images.image(LABEL, {"param:w": torch.ones(3)}))
    assert decode(bytes(image.memory))["param:w"].tolist() == [1.0, 1.0, 1.0]


def test_an_image_lies_in_what_was_reserved_for_it() -> None:
    images, tensors = Images(), {f"param:w{i}": torch.ones(1000 + i) for i in range(50)}
    images.reserve(LABEL.segment, tensors)
    reserved = images._kept[LABEL.segment]
    assert filled(images.image(LABEL, tensors)).memory.obj is not None
    assert images._kept[LABEL.segment] is reserved


def test_tensors_are_read_into_what_is_like_them(store: Store) -> None:
    wanted = saved(store, 1)
    alike, strided = torch.zeros(4, 3), torch.zeros(8)[::2]
    targets = {"param:0.w0": alike, "param:0.w1": torch.zeros(3).double(), "buffer:0.count": strided}
    found: dict[str, torch.Tensor] = {}
    for _, tensors in iter_tensors(store, read_manifest(store, "job", 1), [0], targets):
        found |= tensors
    assert equal({0: found}, {0: wanted[0]})
    assert found["param:0.w0"] is alike
    assert [name for name, tensor in found.items() if any(tensor is t for t in targets.values())] == [
        "param:0.w0"
    ]


@pytest.mark.parametrize("num_bytes", [0, 1, (1 << 20) - 1, 1 << 20, (1 << 20) + 1, 40 << 20])
def test_tensors_of_any_size_come_back(store: Store, num_bytes: int) -> None:
    tensors = {
        "param:a": torch.arange(num_bytes, dtype=torch.int32).to(torch.uint8),
        "param:b": torch.arange(3.0).bfloat16(),
        "param:c": torch.tensor(2.0, dtype=torch.float64),
    }
    data = encode(LABEL, tensors)
    store.put(LABEL.key, data)
    manifest = replace(read_of(store), shards=(describe(data),))
    assert equal(load_segments(store, manifest, [3], "cpu"), {3: tensors})
    assert equal({3: decode(data)}, {3: tensors})
    check_shards(store, manifest)


def test_a_flipped_bit_anywhere_in_a_large_shard_is_refused_by_name(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    tensors = {"param:a": torch.ones(1_000_000), "param:b": torch.ones(10)}
    data = bytearray(encode(LABEL, tensors))
    manifest = replace(read_of(store), shards=(describe(bytes(data)),))
    entry = manifest.shards[0]
    for index, name in (
        (20, "its header"),
        (4096, "param:a"),
        (3_000_000, "param:a"),
        (-1, "param:b"),
    ):
        data[index] ^= 1
        store.put(LABEL.key, bytes(data))
        with pytest.raises(CheckpointRefused, match=f"{entry.key}: the checksum of {name}"):
            load_segments(store, manifest, [3], "cpu")
        with pytest.raises(CheckpointRefused, match=f"{entry.key}: the checksum of {name}"):
            check_shards(store, manifest)
        data[index] ^= 1
    store.put(LABEL.key, bytes(data[:-1]))
    with pytest.raises(CheckpointRefused, match=f"{entry.key}: ends at byte"):
        load_segments(store, manifest, [3], "cpu")
