"""From the records of all ranks to a manifest, or the reason why there is none; pure and torch-free."""

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from varuna_runtime.checkpoint.manifests import check_model
from varuna_runtime.spec.errors import CheckpointRefused
from varuna_runtime.spec.manifest import FORMAT, Manifest, ShardEntry, TrainerState
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.pieces import PieceName


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentNames:
    """All tensor names a rank holds of a segment like every other replica."""

    segment: int
    num_tensors: int
    sha256: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RankRecord:
    """What one rank did for one save; `error` is empty when its shards are in the store."""

    step: int
    generation: int
    rank: int
    held: tuple[SegmentNames, ...]
    shards: tuple[ShardEntry, ...]
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Incomplete:
    """The records do not make a checkpoint."""

    reason: str


def segment_names(segment: int, names: Iterable[str]) -> SegmentNames:
    """Return the fingerprint of a segment's tensor names, without those that one replica holds alone."""
    ordered = sorted(name for name in names if not PieceName.of(name).is_alone)
    digest = hashlib.sha256("\n".join(ordered).encode()).hexdigest()
    return SegmentNames(segment=segment, num_tensors=len(ordered), sha256=digest)


def assemble(
    records: Sequence[RankRecord], *, job: str, generation: int, model: ModelRecord, trainer: TrainerState
) -> Manifest | Incomplete:
    """Return the manifest of `trainer.step` if the ranks together wrote each tensor exactly once."""
    for record in records:
        if record.error:
            return Incomplete(reason=f"rank {record.rank} {record.error}")
        if (record.step, record.generation) != (trainer.step, generation):
            seen = f"step {record.step} of generation {record.generation}"
            return Incomplete(reason=f"rank {record.rank} wrote {seen}, wanted step {trainer.step}")
    if reason := _disagreement(records) or _gap(records):
        return Incomplete(reason=reason)
    manifest = Manifest(
        format=FORMAT,
        job=job,
        step=trainer.step,
        generation=generation,
        model_hash=model.hash(),
        shards=tuple(sorted((s for r in records for s in r.shards), key=lambda shard: shard.key)),
        trainer=trainer,
        tied=_names(model),
    )
    try:
        check_model(manifest, model)
    except CheckpointRefused as err:
        return Incomplete(reason=str(err))
    return manifest


def _names(model: ModelRecord) -> tuple[tuple[str, ...], ...]:
    """Return all names of tensors that have several; a record of an older version knows uses only."""
    known = {names[0] for names in model.aliases}
    uses = (tuple(dict.fromkeys(use.name for use in tie.uses)) for tie in model.tied)
    others = (names for names in uses if len(names) > 1 and names[0] not in known)
    return (*model.aliases, *others)


def _disagreement(records: Sequence[RankRecord]) -> str:
    """Return which ranks hold different tensors of one segment, or nothing."""
    first: dict[int, tuple[int, SegmentNames]] = {}
    for record in records:
        for held in record.held:
            rank, other = first.setdefault(held.segment, (record.rank, held))
            if other != held:
                return f"ranks {rank} and {record.rank} hold different tensors of segment {held.segment}"
    return ""


def _gap(records: Sequence[RankRecord]) -> str:
    """Return which segment was not written tensor by tensor exactly once, or nothing."""
    wanted = {held.segment: held for record in records for held in record.held}
    written: dict[int, list[str]] = {segment: [] for segment in wanted}
    for record in records:
        for shard in record.shards:
            written.setdefault(shard.segment, []).extend(tensor.name for tensor in shard.tensors)
    for segment, names in sorted(written.items()):
        if wanted.get(segment) != segment_names(segment, names):
            return f"segment {segment}: the parts do not hold each of its tensors once"
    return ""
