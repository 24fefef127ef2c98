"""Whoever can write to the store can at worst have a checkpoint refused, by the name of the object."""

import copy
import hashlib
import json
import tracemalloc
from collections.abc import Callable, Iterator
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import given, settings

from tests.support.checkpoints import State, equal, model_record, saved
from varuna_runtime.checkpoint import Scan, complete_steps, read_manifest, scan
from varuna_runtime.checkpoint.checksums import chained, checksum
from varuna_runtime.checkpoint.manifests import sealed
from varuna_runtime.checkpoint.tensors import load_segments
from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import CheckpointRefused, InvalidInput
from varuna_runtime.spec.manifest import Manifest, checkpoint_prefix, manifest_key
from varuna_runtime.store import Store, open_store

MODEL = model_record()
OLD, NEW = 10, 20
KEY = manifest_key("job", NEW)
PREFIX = checkpoint_prefix("job", NEW)
Json = Any
Change = Callable[[Json], Json]


def _objects() -> dict[str, bytes]:
    store = open_store("memory://")
    VALUES.update({step: saved(store, step) for step in (OLD, NEW)})
    return {key: store.get(key) for key in store.list("jobs")}


VALUES: dict[int, State] = {}
OBJECTS = _objects()


def two_steps() -> tuple[Store, Json]:
    """A store with two steps, and the manifest of the newer one."""
    store = open_store("memory://")
    for key, data in OBJECTS.items():
        store.put(key, data)
    return store, json.loads(OBJECTS[KEY])


def refused_or_whole(store: Store) -> Scan:
    """Look at the store in every way, and check that what is refused is refused by name."""
    found = scan(store, "job", verify=True, model=MODEL)
    assert all(PREFIX in refusal.reason for refusal in found.refusals)
    assert found.manifest is not None
    assert equal(load_segments(store, found.manifest, [0, 1], "cpu"), VALUES[found.manifest.step])
    assert OLD in complete_steps(store, "job")
    assert PREFIX in told(lambda: load_segments(store, read_manifest(store, "job", NEW), [0, 1], "cpu"))
    return found


def told(load: Callable[[], object]) -> str:
    """Why a load is refused, or where it would be said."""
    try:
        load()
    except CheckpointRefused as err:
        return str(err)
    return PREFIX


def text(value: Json) -> bytes:
    return json.dumps(value).encode()


def sealed_text(document: Json) -> bytes:
    """The manifest with a checksum of its own that is right, if it is one at all."""
    try:
        return canonical.dumps(sealed(canonical.loads(Manifest, text(document))))
    except InvalidInput:
        return text(document)


def at(*path: str | int, put: Json) -> Change:
    """Return a change of one place of a document."""

    def change(document: Json) -> Json:
        place = document
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = put
        return document

    return change


def same_shard_twice(document: Json) -> Json:
    document["shards"].append(copy.deepcopy(document["shards"][0]))
    return document


MANIFESTS: dict[str, Change] = {
    "another job": at("job", put="other"),
    "a job that is a path": at("job", put="../../etc"),
    "another step": at("step", put=OLD),
    "a negative step": at("step", put=-NEW),
    "a step beyond all numbers": at("step", put=10**400),
    "another format": at("format", put=3),
    "a negative generation": at("generation", put=-1),
    "another model": at("model_hash", put="0" * 64),
    "a key that leads out": at("shards", 0, "key", put=f"{PREFIX}/g1/s00000-../../../secret.safetensors"),
    "a key of another step": at("shards", 0, "key", put=f"{checkpoint_prefix('job', OLD)}/g1/s00000-000"),
    "a key that is absolute": at("shards", 0, "key", put="/etc/passwd"),
    "a key of nothing": at("shards", 0, "key", put=f"{PREFIX}/g1/s00000-007.safetensors"),
    "a shard of a terabyte": at("shards", 0, "num_bytes", put=10**12),
    "a shard of less than nothing": at("shards", 0, "num_bytes", put=-1),
    "an earlier format": at("format", put=1),
    "the checksum of an earlier format": at("shards", 0, "sha256", put=hashlib.sha256(b"").hexdigest()),
    "no checksum": at("shards", 0, "checksum", put=""),
    "the checksum of nothing": at("shards", 0, "checksum", put=checksum(memoryview(b""))),
    "no checksum of a tensor": at("shards", 0, "tensors", 0, "checksum", put=""),
    "a checksum of another tensor": lambda d: at(
        "shards", 0, "tensors", 0, "checksum", put=d["shards"][0]["tensors"][1]["checksum"]
    )(d),
    "an offset before the object": at("shards", 0, "tensors", 0, "offset", put=-8),
    "an offset behind the object": at("shards", 0, "tensors", 0, "offset", put=2**62),
    "an offset in the header": at("shards", 0, "tensors", 0, "offset", put=8),
    "a negative segment": at("shards", 0, "segment", put=-1),
    "a segment that is another": at("shards", 0, "segment", put=1),
    "one shard twice": same_shard_twice,
    "no shards": at("shards", put=[]),
    "a negative shape": at("shards", 0, "tensors", 0, "shape", put=[-4, -3]),
    "a shape whose product overflows": at("shards", 0, "tensors", 0, "shape", put=[2**33, 2**33, 2**33]),
    "a shape of a million dimensions": at("shards", 0, "tensors", 0, "shape", put=[10**9] * 100_000),
    "a type that is another": at("shards", 0, "tensors", 0, "dtype", put="float64"),
    "a type that is none": at("shards", 0, "tensors", 0, "dtype", put="pickle"),
    "a tensor of another name": at("shards", 0, "tensors", 0, "name", put="param:other"),
    "a name twice": lambda d: at("shards", 0, "tensors", 0, "name", put=d["shards"][0]["tensors"][1]["name"])(
        d
    ),
    "a slice from nowhere": at("shards", 0, "tensors", 0, "name", put="optim:a:b@" + "9" * 5000),
    "a loss that is no number": at("trainer", "losses", 0, "loss_hex", put="0x1.zzp3"),
    "a loss beyond all numbers": at("trainer", "losses", 0, "loss_hex", put="0x1p999999"),
    "groups that do not parse": at("trainer", "optimizer_groups", put="[" * 100_000),
    "a scheduler that does not parse": at("trainer", "scheduler", put="{"),
    "a trainer of another step": at("trainer", "step", put=OLD),
    "nothing inside": lambda _: {},
    "a list": lambda _: [],
}


@pytest.mark.parametrize("change", [pytest.param(c, id=name) for name, c in MANIFESTS.items()])
def test_a_hostile_manifest_is_refused(change: Change) -> None:
    store, document = two_steps()
    store.put(KEY, sealed_text(change(document)))
    found = refused_or_whole(store)
    assert found.manifest is not None
    assert found.manifest.step == OLD
    assert len(found.refusals) == 1


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="zero bytes"),
        pytest.param(b"\0" * 1000, id="zeros"),
        pytest.param(b"[" * 1_000_000, id="deep lists"),
        pytest.param(b'{"job":' * 100_000, id="deep objects"),
        pytest.param(b"\xff\xfe{}", id="no text"),
        pytest.param(b"\x80\x04cposix\nsystem\n", id="a pickle"),
        pytest.param(b"NaN", id="not a number"),
    ],
)
def test_bytes_that_are_no_manifest_are_refused(data: bytes) -> None:
    store, _ = two_steps()
    store.put(KEY, data)
    assert len(refused_or_whole(store).refusals) == 1


def test_a_manifest_without_end_is_not_read() -> None:
    store, _ = two_steps()
    store.put(KEY, b" " * (64 * 2**20 + 1))
    tracemalloc.start()
    (refusal,) = scan(store, "job", verify=False).refusals
    assert tracemalloc.get_traced_memory()[1] < 2**20
    tracemalloc.stop()
    assert "wanted at most" in refusal.reason


@pytest.mark.parametrize(
    "key",
    [
        f"jobs/job/checkpoints/{'9' * 300}/manifest.json",
        "jobs/job/checkpoints/0000000000000000030/manifest.json",
        "jobs/job/checkpoints/inner/000000000030/manifest.json",
        "jobs/job/checkpoints/-00000000030/manifest.json",
    ],
)
def test_what_only_looks_like_a_step_is_none(key: str) -> None:
    store, document = two_steps()
    store.put(key, text(document))
    assert scan(store, "job", verify=True, model=MODEL).refusals == ()


def with_shard(data: bytes, format_: int) -> Store:
    """A store whose manifest agrees with a shard of these bytes in size, places and checksum."""
    store, document = two_steps()
    document["format"] = format_
    for entry in document["shards"]:
        held = data if entry is document["shards"][0] else store.get(entry["key"])
        entry["num_bytes"] = len(held)
        if format_ == 1:
            entry["sha256"], entry["checksum"] = hashlib.sha256(held).hexdigest(), ""
        else:
            _point(entry, held)
        for tensor in entry["tensors"] if format_ == 1 else ():
            tensor["offset"], tensor["checksum"] = 0, ""
    store.put(document["shards"][0]["key"], data)
    store.put(KEY, text(document | {"sha256": ""}) if format_ == 1 else sealed_text(document))
    return store


def _point(entry: Json, data: bytes) -> None:
    """Let an entry say the truth about a shard with another header."""
    begin = min(8 + int.from_bytes(data[:8], "little"), len(data))
    old = min(tensor["offset"] for tensor in entry["tensors"])
    for tensor in entry["tensors"]:
        tensor["offset"] += begin - old
    header = memoryview(data)[:begin]
    entry["checksum"] = chained((checksum(header), *(tensor["checksum"] for tensor in entry["tensors"])))


def shard_parts() -> tuple[Json, bytes]:
    store, document = two_steps()
    data = store.get(document["shards"][0]["key"])
    begin = 8 + int.from_bytes(data[:8], "little")
    return json.loads(data[8:begin]), data[begin:]


def packed(header: Json | bytes, body: bytes) -> bytes:
    raw = header if isinstance(header, bytes) else text(header)
    return len(raw).to_bytes(8, "little") + raw + body


WEIGHT, OTHER = "param:0.w0", "param:0.w2"
LABEL = '{"job":"job","step":20,"generation":1,"segment":0,"part":0}'
HEADERS: dict[str, Change] = {
    "negative offsets": at(WEIGHT, "data_offsets", put=[-48, 0]),
    "offsets beyond the end": at(WEIGHT, "data_offsets", put=[0, 2**62]),
    "offsets back to front": at(WEIGHT, "data_offsets", put=[48, 0]),
    "offsets that are no numbers": at(WEIGHT, "data_offsets", put=["0", "48"]),
    "offsets that are halves": at(WEIGHT, "data_offsets", put=[0.5, 48.5]),
    "offsets that are truths": at(WEIGHT, "data_offsets", put=[False, True]),
    "three offsets": at(WEIGHT, "data_offsets", put=[0, 1, 2]),
    "tensors that overlap": lambda h: at(WEIGHT, "data_offsets", put=h[OTHER]["data_offsets"])(h),
    "a type that is another": at(WEIGHT, "dtype", put="F64"),
    "a type that is as wide": at(WEIGHT, "dtype", put="I32"),
    "a type that is none": at(WEIGHT, "dtype", put="PICKLE"),
    "a shape whose product overflows": at(WEIGHT, "shape", put=[2**32, 2**32, 12]),
    "a negative shape": at(WEIGHT, "shape", put=[-4, -3]),
    "a shape of truths": at(WEIGHT, "shape", put=[True, 12]),
    "a shape that is a text": at(WEIGHT, "shape", put="43"),
    "a tensor of more": at(WEIGHT, "extra", put=1),
    "a tensor of less": lambda h: {**h, WEIGHT: {}},
    "a tensor that is a number": lambda h: {**h, WEIGHT: 5},
    "no label": lambda h: {**h, "__metadata__": {}},
    "a label that is a number": lambda h: {**h, "__metadata__": {"varuna": 5}},
    "metadata that is a list": lambda h: {**h, "__metadata__": [1]},
    "the label of another job": lambda h: {
        **h,
        "__metadata__": {"varuna": LABEL.replace('"job",', '"else",')},
    },
    "the label of another step": lambda h: {**h, "__metadata__": {"varuna": LABEL.replace("20", "10")}},
    "the label of a part below all": lambda h: {
        **h,
        "__metadata__": {"varuna": LABEL.replace(":0}", ":-1}")},
    },
    "a name of half a character": lambda h: {**h, "\ud800": h[WEIGHT]},
}


@pytest.mark.parametrize("format_", [1, 2])
@pytest.mark.parametrize("change", [pytest.param(c, id=name) for name, c in HEADERS.items()])
def test_a_hostile_header_is_refused_though_its_checksum_is_right(change: Change, format_: int) -> None:
    header, body = shard_parts()
    assert refused_or_whole(with_shard(packed(header, body), format_)).refusals == ()
    assert refused_or_whole(with_shard(packed(change(header), body), format_)).refusals


@pytest.mark.parametrize(
    "data",
    [
        pytest.param(b"", id="zero bytes"),
        pytest.param(b"\0" * 8, id="an empty header"),
        pytest.param((2**63).to_bytes(8, "little") + b"{}", id="a huge header length"),
        pytest.param((2**64 - 1).to_bytes(8, "little") + b"{}", id="the largest header length"),
        pytest.param(packed(b"[" * 200_000, b""), id="deep lists"),
        pytest.param(packed(b'{"a":' * 200_000, b""), id="deep objects"),
        pytest.param(packed(b'{"a":1,"a":1}', b""), id="a name twice"),
        pytest.param(packed(b'{"a":' + b"9" * 100_000 + b"}", b""), id="a number without end"),
        pytest.param(packed(b'{"a":NaN}', b""), id="not a number"),
        pytest.param(packed(b"\xff", b""), id="no text"),
        pytest.param(b"PK\x03\x04" + b"\0" * 100, id="a zip of pickles"),
    ],
)
@pytest.mark.parametrize("format_", [1, 2])
def test_bytes_that_are_no_shard_are_refused_whatever_their_checksum(data: bytes, format_: int) -> None:
    store = with_shard(data, format_)
    tracemalloc.start()
    found = refused_or_whole(store)
    assert tracemalloc.get_traced_memory()[1] < 64 * 2**20
    tracemalloc.stop()
    assert len(found.refusals) == 1


def places(document: Json, path: tuple[str | int, ...] = ()) -> Iterator[tuple[str | int, ...]]:
    """All places of a document."""
    pairs = document.items() if isinstance(document, dict) else enumerate(document)
    for key, value in pairs:
        yield (*path, key)
        if isinstance(value, dict | list):
            yield from places(value, (*path, key))


NASTY = st.sampled_from(
    [
        *(None, True, -1, 0, 1, 2**63, 10**50, 1e308, float("nan"), float("inf"), "", "0", "\0", "../.."),
        *("9" * 5000, "[" * 5000, "param:0.w1", "optim:0.w1:x@3", [], {}, [[]], {"a": 1}, [0] * 100),
    ]
).map(copy.deepcopy)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_manifest_with_any_values_is_refused_or_harmless(data: st.DataObject) -> None:
    store, document = two_steps()
    for _ in range(data.draw(st.integers(1, 2))):
        path = data.draw(st.sampled_from(sorted(places(document), key=repr)))
        document = at(*path, put=data.draw(NASTY))(document)
    store.put(KEY, sealed_text(document))
    refused_or_whole(store)


@settings(max_examples=150, deadline=None)
@given(data=st.data())
def test_a_header_with_any_values_is_refused_or_harmless(data: st.DataObject) -> None:
    format_ = data.draw(st.sampled_from([1, 2]))
    header, body = shard_parts()
    path = data.draw(st.sampled_from(sorted(places(header), key=repr)))
    header = at(*path, put=data.draw(NASTY))(header)
    refused_or_whole(with_shard(packed(header, body), format_))


@settings(max_examples=150, deadline=None)
@given(where=st.floats(0, 1), put=st.binary(max_size=12), cut=st.integers(0, 12))
def test_bytes_changed_anywhere_are_refused_or_harmless(where: float, put: bytes, cut: int) -> None:
    for key in (KEY, f"{PREFIX}/g1/s00000-000.safetensors"):
        store, _ = two_steps()
        good = store.get(key)
        start = int(where * len(good))
        store.put(key, good[:start] + put + good[start + cut :])
        refused_or_whole(store)
