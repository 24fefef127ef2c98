"""The records of all ranks become a manifest only if together they hold each tensor once."""

from dataclasses import replace

import pytest
import torch

from tests.support.checkpoints import model_record, state, trainer_state
from varuna_runtime.checkpoint.assembly import Incomplete, RankRecord, assemble, segment_names
from varuna_runtime.checkpoint.shards import ShardLabel, describe
from varuna_runtime.checkpoint.tensors import encode, part_of
from varuna_runtime.spec.manifest import Manifest, ShardEntry

MODEL = model_record()
VALUES = state(MODEL, seed=1)


def record(rank: int, *, step: int = 5, replicas: int = 2) -> RankRecord:
    """One of `replicas` ranks that all hold the whole model."""
    return RankRecord(
        step=step,
        generation=1,
        rank=rank,
        held=tuple(segment_names(segment, VALUES[segment]) for segment in VALUES),
        shards=tuple(
            shard(segment, rank, step) for segment in part_of(VALUES, replicas=replicas, replica=rank)
        ),
        error="",
    )


def shard(segment: int, rank: int, step: int) -> ShardEntry:
    part = part_of(VALUES, replicas=2, replica=rank)[segment]
    return describe(encode(ShardLabel(job="job", step=step, generation=1, segment=segment, part=rank), part))


def made(*records: RankRecord) -> Manifest | Incomplete:
    return assemble(records, job="job", generation=1, model=MODEL, trainer=trainer_state(5))


def reason(*records: RankRecord) -> str:
    outcome = made(*records)
    assert isinstance(outcome, Incomplete)
    return outcome.reason


def test_complete_records_make_a_manifest_in_key_order() -> None:
    manifest = made(record(1), record(0))
    assert isinstance(manifest, Manifest)
    assert [entry.key for entry in manifest.shards] == sorted(entry.key for entry in manifest.shards)
    assert len(manifest.shards) == 4


def test_t10_a_record_of_another_step_makes_none() -> None:
    assert "rank 1 wrote step 4" in reason(record(0), record(1, step=4))


def test_a_record_of_another_generation_makes_none() -> None:
    assert "generation 2" in reason(record(0), replace(record(1), generation=2))


def test_a_rank_that_failed_is_named() -> None:
    assert reason(record(0), replace(record(1), error="failed: disk full")) == "rank 1 failed: disk full"


def test_a_missing_part_makes_none() -> None:
    assert "segment 0" in reason(record(0))


def test_a_part_written_twice_makes_none() -> None:
    assert "segment 0" in reason(record(0), record(0))


def test_replicas_that_hold_different_tensors_make_none() -> None:
    other = tuple(segment_names(segment, ["param:other"]) for segment in VALUES)
    assert "ranks 0 and 1 hold different" in reason(record(0), replace(record(1), held=other))


@pytest.mark.parametrize("num_segments", [1, 3])
def test_the_parameters_must_be_those_of_the_model(num_segments: int) -> None:
    outcome = assemble(
        (record(0), record(1)),
        job="job",
        generation=1,
        model=model_record(num_segments),
        trainer=trainer_state(5),
    )
    assert isinstance(outcome, Manifest) == (num_segments < 3)


def sharing(rank: int, *own: tuple[str, int]) -> RankRecord:
    """A record of a rank that holds these names, of so many elements, beside what both hold."""
    shared = {
        segment: {name: tensor for name, tensor in held.items() if not name.startswith("optim:")}
        for segment, held in VALUES.items()
    }
    shared[0] |= {name: torch.zeros(num_elements) for name, num_elements in own}
    parts = part_of(shared, replicas=2, replica=rank)
    entries = tuple(
        describe(encode(ShardLabel(job="job", step=5, generation=1, segment=segment, part=rank), part))
        for segment, part in parts.items()
    )
    held = tuple(segment_names(segment, shared[segment]) for segment in shared)
    return replace(record(rank), held=held, shards=entries)


WEIGHT = "optim:0.w0:exp_avg"  # of a parameter of 12 elements


def test_state_that_replicas_hold_in_shares_makes_a_manifest() -> None:
    first = sharing(0, (f"{WEIGHT}@0", 8), ("optim:0.w1:exp_avg@", 3))
    second = sharing(1, (f"{WEIGHT}@8", 4), ("optim:0.w2:exp_avg@", 8))
    manifest = made(first, second)
    assert isinstance(manifest, Manifest)
    names = [tensor.name for entry in manifest.shards for tensor in entry.tensors]
    assert sorted(name for name in names if "@" in name) == [
        f"{WEIGHT}@0",
        f"{WEIGHT}@8",
        "optim:0.w1:exp_avg@",
        "optim:0.w2:exp_avg@",
    ]


@pytest.mark.parametrize(
    ("first", "second", "why"),
    [
        ((f"{WEIGHT}@0", 8), (f"{WEIGHT}@7", 5), "do not meet at element 7"),
        ((f"{WEIGHT}@0", 8), (f"{WEIGHT}@9", 3), "do not meet at element 9"),
        ((f"{WEIGHT}@0", 8), ("optim:0.w1:exp_avg@", 3), "only a part of"),
        ((f"{WEIGHT}@4", 8), ("optim:0.w1:exp_avg@", 3), "do not meet at element 4"),
        ((f"{WEIGHT}@0", 8), (f"{WEIGHT}@8", 5), "only a part of"),
        ((f"{WEIGHT}@", 12), (f"{WEIGHT}@0", 12), "twice"),
    ],
)
def test_shares_that_do_not_make_a_whole_make_no_manifest(
    first: tuple[str, int], second: tuple[str, int], why: str
) -> None:
    assert why in reason(sharing(0, first), sharing(1, second))
