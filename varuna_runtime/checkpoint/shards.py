"""Shards as bytes: what is written inside one, and whether bytes are the shard an entry names; torch-free.

The layout of a safetensors file: an 8-byte little-endian header length, a JSON header, the tensors' bytes.
"""

import hashlib
import json
from dataclasses import dataclass

from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import CheckpointRefused, InvalidInput
from varuna_runtime.spec.manifest import ShardEntry, TensorEntry, shard_key

LABEL = "varuna"  # the one metadata entry: several would be written in a random order, with random checksums

_DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn",
    "F8_E5M2": "float8_e5m2",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U64": "uint64",
    "U32": "uint32",
    "U16": "uint16",
    "U8": "uint8",
    "BOOL": "bool",
    "C64": "complex64",
}


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


def describe(data: bytes) -> ShardEntry:
    """Return the entry of an encoded shard; CheckpointRefused when it is not one of ours."""
    label, tensors = _parse(data)
    return ShardEntry(
        key=label.key,
        segment=label.segment,
        num_bytes=len(data),
        sha256=hashlib.sha256(data).hexdigest(),
        tensors=tensors,
    )


def check(entry: ShardEntry, data: bytes) -> None:
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


def _parse(data: bytes) -> tuple[ShardLabel, tuple[TensorEntry, ...]]:
    start = 8 + int.from_bytes(data[:8], "little")
    if len(data) < 8 or start > len(data):
        raise CheckpointRefused("not a safetensors object: it ends inside its header")
    try:
        header = json.loads(data[8:start])
        label = canonical.loads(ShardLabel, header.pop("__metadata__")[LABEL])
        tensors = tuple(_tensor(name, **header[name]) for name in sorted(header))
    except (ValueError, KeyError, TypeError, AttributeError, InvalidInput) as err:
        raise CheckpointRefused("not a shard: its header does not parse") from err
    if sum(tensor.num_bytes for tensor in tensors) != len(data) - start:
        raise CheckpointRefused("not a shard: its tensors do not add up to its size")
    return label, tensors


def _tensor(name: str, dtype: str, shape: list[int], data_offsets: list[int]) -> TensorEntry:
    first, last = data_offsets
    return TensorEntry(name=name, shape=tuple(shape), dtype=_DTYPES[dtype], num_bytes=last - first)
