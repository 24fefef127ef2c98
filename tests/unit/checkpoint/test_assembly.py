"""The records of all ranks become a manifest only if together they hold each tensor once."""

from dataclasses import replace

import pytest

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
