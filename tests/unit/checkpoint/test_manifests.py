"""The newest complete step is found whatever else lies in the store."""

import hashlib
import json
from dataclasses import replace

import pytest

from tests.support.checkpoints import equal, model_record, saved, state
from varuna_runtime.checkpoint import Scan, commit, complete_steps, newest_complete, read_manifest, scan
from varuna_runtime.checkpoint.manifests import check_shards, sealed
from varuna_runtime.checkpoint.tensors import load_segments
from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import CheckpointRefused
from varuna_runtime.spec.manifest import Manifest, checkpoint_prefix, manifest_key
from varuna_runtime.store import Store, open_store


@pytest.fixture
def store() -> Store:
    store = open_store("memory://")
    saved(store, 10)
    saved(store, 20)
    return store


def manifest(store: Store, step: int) -> Manifest:
    return read_manifest(store, "job", step)


def overwrite(store: Store, at: int, /, **changes: object) -> None:
    changed = replace(manifest(store, at), **changes)  # type: ignore[arg-type]
    store.put(manifest_key("job", at), canonical.dumps(sealed(changed)))


def as_format_1(store: Store, step: int) -> None:
    """Rewrite a step as an earlier version wrote it."""
    old = [
        replace(
            entry,
            checksum="",
            sha256=hashlib.sha256(store.get(entry.key)).hexdigest(),
            tensors=tuple(replace(tensor, offset=0, checksum="") for tensor in entry.tensors),
        )
        for entry in manifest(store, step).shards
    ]
    plain = replace(manifest(store, step), format=1, shards=tuple(old), sha256="")
    store.put(manifest_key("job", step), canonical.dumps(plain))


def step_of(found: Scan) -> int | None:
    return found.manifest.step if found.manifest else None


def test_an_empty_store_has_no_step_and_no_refusal() -> None:
    found = scan(open_store("memory://"), "job", verify=True)
    assert found.manifest is None
    assert found.refusals == ()


def test_the_highest_complete_step_is_the_newest(store: Store) -> None:
    found = newest_complete(store, "job", verify=True, model=model_record())
    assert found is not None
    assert found.step == 20
    assert complete_steps(store, "job") == (10, 20)


def test_t15_directories_without_a_manifest_are_passed_over(store: Store) -> None:
    store.put(f"{checkpoint_prefix('job', 30)}/g1/s00000-000.safetensors", b"half")
    store.put(f"{checkpoint_prefix('job', 40)}/note.txt", b"")
    found = scan(store, "job", verify=True)
    assert step_of(found) == 20
    assert found.refusals == ()


@pytest.mark.parametrize("text", [b"", b"{", b"null", b'{"format":1}', b"\xff\xfe"])
def test_t14_a_torn_manifest_is_refused_and_the_next_lower_taken(store: Store, text: bytes) -> None:
    store.put(manifest_key("job", 20), text)
    found = scan(store, "job", verify=False)
    assert step_of(found) == 10
    assert [(r.step, "does not parse" in r.reason) for r in found.refusals] == [(20, True)]


def test_a_manifest_cut_anywhere_is_refused(store: Store) -> None:
    whole = store.get(manifest_key("job", 20))
    for length in range(0, len(whole), 97):
        store.put(manifest_key("job", 20), whole[:length])
        assert complete_steps(store, "job") == (10,)


def test_a_missing_shard_is_named(store: Store) -> None:
    key = manifest(store, 20).shards[0].key
    store.delete([key])
    found = scan(store, "job", verify=False)
    assert step_of(found) == 10
    assert found.refusals[0].reason == f"{key}: missing"


def test_t14_a_truncated_shard_is_refused_by_its_size_alone(store: Store) -> None:
    key = manifest(store, 20).shards[1].key
    store.put(key, store.get(key)[:-5])
    found = scan(store, "job", verify=False)
    assert step_of(found) == 10
    assert key in found.refusals[0].reason


def test_a_flipped_bit_is_refused_when_verifying(store: Store) -> None:
    key = manifest(store, 20).shards[0].key
    flipped = bytearray(store.get(key))
    flipped[-1] ^= 1
    store.put(key, bytes(flipped))
    found = scan(store, "job", verify=True)
    assert step_of(found) == 10
    assert key in found.refusals[0].reason


def test_bytes_behind_the_end_of_a_shard_are_damage_to_whoever_verifies(store: Store) -> None:
    entry = manifest(store, 20).shards[0]
    store.put(entry.key, store.get(entry.key) + b"more")
    with pytest.raises(CheckpointRefused, match=entry.key):
        check_shards(store, manifest(store, 20))


def test_t18_a_shard_of_another_step_is_refused(store: Store) -> None:
    here, there = manifest(store, 20).shards[0], manifest(store, 10).shards[0]
    store.put(here.key, store.get(there.key))
    found = scan(store, "job", verify=True)
    assert step_of(found) == 10
    assert here.key in found.refusals[0].reason


def test_t18_a_manifest_that_names_another_steps_shards_is_refused(store: Store) -> None:
    overwrite(store, 20, shards=(*manifest(store, 20).shards[:1], *manifest(store, 10).shards[1:]))
    found = scan(store, "job", verify=False)
    assert step_of(found) == 10
    assert "not of its step" in found.refusals[0].reason


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"format": 3}, "format 3"),
        ({"format": 1}, "no SHA-256"),
        ({"job": "other"}, "of job other"),
        ({"step": 19}, "step 19"),
        ({"generation": 9}, "not of its step and generation"),
    ],
)
def test_a_foreign_manifest_is_refused(store: Store, changes: dict[str, object], reason: str) -> None:
    overwrite(store, 20, **changes)
    found = scan(store, "job", verify=False)
    assert step_of(found) == 10
    assert reason in found.refusals[0].reason


def test_a_tensor_held_twice_is_refused(store: Store) -> None:
    shards = manifest(store, 20).shards
    overwrite(store, 20, shards=(*shards, shards[0]))
    with pytest.raises(CheckpointRefused, match="twice"):
        manifest(store, 20)


def test_a_checkpoint_without_a_parameter_is_refused_for_its_model(store: Store) -> None:
    overwrite(store, 20, shards=manifest(store, 20).shards[:1])
    found = scan(store, "job", verify=True, model=model_record())
    assert step_of(found) == 10
    assert "lacks 1.w0 of segment 1" in found.refusals[0].reason


def test_a_checkpoint_of_another_model_is_refused(store: Store) -> None:
    found = scan(store, "job", verify=False, model=model_record(num_segments=3))
    assert found.manifest is None
    assert [refusal.step for refusal in found.refusals] == [20, 10]


def test_commit_is_idempotent(store: Store) -> None:
    assert commit(store, manifest(store, 20)) == manifest(store, 20)


def test_commit_refuses_a_manifest_whose_shards_are_not_there(store: Store) -> None:
    known = manifest(store, 20)
    store.delete([manifest_key("job", 20), known.shards[0].key])
    with pytest.raises(CheckpointRefused, match="missing"):
        commit(store, known)
    assert complete_steps(store, "job") == (10,)


def test_a_step_is_durable_once(store: Store) -> None:
    first = manifest(store, 20)
    values = saved(store, 20, generation=2)
    assert manifest(store, 20) == first
    assert equal(load_segments(store, manifest(store, 20), [0, 1], "cpu"), values)


def test_a_manifest_that_cannot_be_loaded_gives_way_to_a_later_generation(store: Store) -> None:
    store.delete([manifest(store, 20).shards[0].key])
    values = saved(store, 20, generation=2)
    found = newest_complete(store, "job", verify=True)
    assert found is not None
    assert (found.step, found.generation) == (20, 2)
    assert equal(load_segments(store, found, [0, 1], "cpu"), values)


def test_jobs_do_not_see_each_other(store: Store) -> None:
    saved(store, 90, job="job-2")
    assert complete_steps(store, "job") == (10, 20)
    assert complete_steps(store, "job-2") == (90,)


def test_every_changed_byte_of_a_manifest_is_noticed(store: Store) -> None:
    good, wanted = store.get(manifest_key("job", 20)), manifest(store, 20)
    for index in range(0, len(good), 7):
        changed = bytearray(good)
        changed[index] ^= 0x01
        store.put(manifest_key("job", 20), bytes(changed))
        found = scan(store, "job", verify=False).manifest
        assert found is not None
        assert found.step == 10 or found == wanted  # where the name of a default value changed


def test_a_manifest_of_a_version_that_had_fewer_fields_is_read(store: Store) -> None:
    plain = json.loads(store.get(manifest_key("job", 20)))
    del plain["tied"], plain["trainer"]["evaluations"]
    text = json.dumps(plain | {"sha256": ""}, sort_keys=True, separators=(",", ":"))
    digest = hashlib.sha256(text.encode()).hexdigest()
    store.put(manifest_key("job", 20), text.replace('"sha256":""', f'"sha256":"{digest}"', 1).encode())
    assert manifest(store, 20).tied == ()


def test_a_step_of_the_first_format_is_read_and_verified(store: Store) -> None:
    as_format_1(store, 20)
    found = scan(store, "job", verify=True, model=model_record())
    assert found.manifest is not None
    assert (found.manifest.step, found.manifest.format) == (20, 1)
    assert equal(load_segments(store, found.manifest, [0, 1], "cpu"), state(model_record(), 20))
    key = found.manifest.shards[0].key
    data = bytearray(store.get(key))
    data[-1] ^= 1
    store.put(key, bytes(data))
    assert step_of(scan(store, "job", verify=True)) == 10
    with pytest.raises(CheckpointRefused, match="SHA-256"):
        load_segments(store, found.manifest, [found.manifest.shards[0].segment], "cpu")


@pytest.mark.parametrize(
    "changes",
    [{"num_bytes": 8}, {"dtype": "float12"}, {"shape": (-4, -3)}, {"offset": 4000}, {"checksum": ""}],
)
def test_an_entry_that_contradicts_itself_is_refused(store: Store, changes: dict[str, object]) -> None:
    first, *others = manifest(store, 20).shards
    large = max(first.tensors, key=lambda tensor: tensor.num_bytes)
    lying = [replace(t, **changes) if t is large else t for t in first.tensors]  # type: ignore[arg-type]
    overwrite(store, 20, shards=(replace(first, tensors=tuple(lying)), *others))
    assert step_of(scan(store, "job", verify=False)) == 10
