"""Shards as bytes: what is written inside one, and whether bytes are the shard an entry names; torch-free."""

import hashlib
from dataclasses import dataclass

from varuna_runtime.checkpoint.headers import Placed, Readable, header_of
from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import CheckpointRefused, InvalidInput
from varuna_runtime.spec.manifest import ShardEntry, TensorEntry, shard_key

LABEL = "varuna"  # the one metadata entry: several would be written in a random order, with random checksums


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardLabel:
    """What a shard says of itself, so that it cannot pass for that of another step."""

    job: str
    step: int
    generation: int
    segment: int
    part: int

    @property
    def key(self) -> str:
        """Where the shard belongs."""
        return shard_key(self.job, self.step, self.generation, self.segment, self.part)


def metadata(label: ShardLabel) -> dict[str, str]:
    """Return the safetensors metadata of a shard."""
    return {LABEL: canonical.dumps(label).decode()}


def describe(data: Readable) -> ShardEntry:
    """Return the entry of an encoded shard; CheckpointRefused when it is not one of ours."""
    label, tensors = _parse(data)
    return ShardEntry(
        key=label.key,
        segment=label.segment,
        num_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        tensors=tensors,
    )


def check(entry: ShardEntry, data: Readable) -> None:
    """Refuse (CheckpointRefused, naming the key) bytes that are not exactly the shard of `entry`."""
    if len(data) != entry.num_bytes:
        raise CheckpointRefused(f"{entry.key}: {len(data)} bytes, wanted {entry.num_bytes}")
    if hashlib.sha256(data).hexdigest() != entry.sha256:
        raise CheckpointRefused(f"{entry.key}: its SHA-256 is not the one in the manifest")
    try:
        found = describe(data)
    except CheckpointRefused as err:
        raise CheckpointRefused(f"{entry.key}: {err}") from err
    if found != entry:
        raise CheckpointRefused(f"{entry.key}: holds {found.key} or other tensors than the manifest says")


def placed(entry: ShardEntry, data: Readable) -> tuple[Placed, ...]:
    """Return where each tensor of a shard that `check` let pass is."""
    return header_of(data).tensors if entry.tensors else ()


def _parse(data: Readable) -> tuple[ShardLabel, tuple[TensorEntry, ...]]:
    header = header_of(data)
    try:
        label = canonical.loads(ShardLabel, header.metadata[LABEL])
    except (KeyError, ValueError, TypeError, InvalidInput) as err:
        raise CheckpointRefused("not a shard: it does not say which") from err
    return label, tuple(
        TensorEntry(name=t.name, shape=t.shape, dtype=t.dtype, num_bytes=t.stop - t.start)
        for t in header.tensors
    )
