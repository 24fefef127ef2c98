"""Shards as bytes: what is written inside one, and whether bytes are the shard an entry names; torch-free."""

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass, replace

from varuna_runtime.checkpoint.checksums import chained, checksum
from varuna_runtime.checkpoint.headers import CODES, ITEM_BYTES, Header, Placed, Readable, header_of
from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import CheckpointRefused, InvalidInput
from varuna_runtime.spec.manifest import ShardEntry, TensorEntry, shard_key

LABEL = "varuna"  # the one metadata entry: several would be written in a random order, with random checksums
HEADER_ALIGNMENT = 4096  # of the tensors' bytes, so that they stay in place from save to save


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrangement:
    """A shard before its tensors are there: its header's bytes, and where each tensor goes."""

    label: ShardLabel
    header: bytes
    tensors: tuple[TensorEntry, ...]  # by offset; without checksums

    @property
    def num_bytes(self) -> int:
        """Size of the whole shard."""
        return len(self.header) + sum(tensor.num_bytes for tensor in self.tensors)


def arrange(label: ShardLabel, tensors: Iterable[TensorEntry]) -> Arrangement:
    """Return the header of a shard of these tensors, whose offsets are ignored.

    Large elements come first, as in the safetensors library: so each tensor is aligned to its elements.
    """
    tensors = tuple(tensors)
    for tensor in tensors:
        if tensor.dtype not in CODES:
            raise CheckpointRefused(f"{label.key}: {tensor.name} is of {tensor.dtype}, which it cannot hold")
    ordered = sorted(tensors, key=lambda tensor: (-ITEM_BYTES[tensor.dtype], tensor.name))
    placed, start = [], 0
    for tensor in ordered:
        placed.append(replace(tensor, offset=start))
        start += tensor.num_bytes
    described = {
        tensor.name: {
            "dtype": CODES[tensor.dtype],
            "shape": tensor.shape,
            "data_offsets": (tensor.offset, tensor.offset + tensor.num_bytes),
        }
        for tensor in placed
    }
    text = json.dumps({"__metadata__": {LABEL: canonical.dumps(label).decode()}} | described).encode()
    text += b" " * (-(8 + len(text)) % HEADER_ALIGNMENT)
    header = len(text).to_bytes(8, "little") + text
    moved = tuple(replace(tensor, offset=tensor.offset + len(header)) for tensor in placed)
    return Arrangement(label=label, header=header, tensors=moved)


def describe(data: Readable) -> ShardEntry:
    """Return the entry of an encoded shard; CheckpointRefused when it is not one of ours."""
    memory = memoryview(data)
    label, tensors = _said_by(header_of(data))
    checked = (replace(t, checksum=checksum(memory[t.offset : t.offset + t.num_bytes])) for t in tensors)
    begin = min((tensor.offset for tensor in tensors), default=len(memory))
    return entry_of(label, memory[:begin], checked)


def entry_of(label: ShardLabel, header: bytes | memoryview, tensors: Iterable[TensorEntry]) -> ShardEntry:
    """Return the entry of a shard from its header's bytes and its tensors with their checksums."""
    named = tuple(sorted(tensors, key=lambda tensor: tensor.name))
    return ShardEntry(
        key=label.key,
        segment=label.segment,
        num_bytes=len(header) + sum(tensor.num_bytes for tensor in named),
        tensors=named,
        checksum=_of_header(header, named),
    )


def in_order(entry: ShardEntry) -> tuple[TensorEntry, ...]:
    """Return the tensors as they follow each other in the object."""
    return tuple(sorted(entry.tensors, key=lambda tensor: (tensor.offset, tensor.num_bytes, tensor.name)))


def header_bytes(entry: ShardEntry) -> int:
    """Return the size of the header, with its length."""
    return min((tensor.offset for tensor in entry.tensors), default=entry.num_bytes)


def check_header(entry: ShardEntry, header: memoryview) -> None:
    """Refuse (CheckpointRefused) the header's bytes unless they are those of `entry`."""
    if _of_header(header, entry.tensors) != entry.checksum:
        raise CheckpointRefused(f"{entry.key}: the checksum of its header is not the one in the manifest")
    try:
        label, tensors = _said_by(header_of(header, entry.num_bytes))
    except CheckpointRefused as err:
        raise CheckpointRefused(f"{entry.key}: {err}") from err
    if label.key != entry.key or tensors != tuple(replace(t, checksum="") for t in entry.tensors):
        raise CheckpointRefused(f"{entry.key}: holds {label.key} or other tensors than the manifest says")


def check(entry: ShardEntry, data: Readable) -> None:
    """Refuse (CheckpointRefused, naming the key) bytes that are not exactly the shard of `entry`."""
    if len(data) != entry.num_bytes:
        raise CheckpointRefused(f"{entry.key}: {len(data)} bytes, wanted {entry.num_bytes}")
    if entry.sha256 and hashlib.sha256(data).hexdigest() != entry.sha256:
        raise CheckpointRefused(f"{entry.key}: its SHA-256 is not the one in the manifest")
    try:
        found = describe(data)
    except CheckpointRefused as err:
        raise CheckpointRefused(f"{entry.key}: {err}") from err
    if entry.sha256:
        found = _as_format_1(found, entry.sha256)
    elif found.checksum != entry.checksum:
        raise CheckpointRefused(f"{entry.key}: its checksum is not the one in the manifest")
    if found != entry:
        raise CheckpointRefused(f"{entry.key}: holds {found.key} or other tensors than the manifest says")


def placed(data: Readable) -> tuple[Placed, ...]:
    """Return where each tensor of a shard is; see `check` too."""
    return header_of(data).tensors


def _as_format_1(entry: ShardEntry, sha256: str) -> ShardEntry:
    plain = tuple(replace(tensor, offset=0, checksum="") for tensor in entry.tensors)
    return replace(entry, tensors=plain, checksum="", sha256=sha256)


def _of_header(header: bytes | memoryview, named: Iterable[TensorEntry]) -> str:
    return chained((checksum(memoryview(header)), *(tensor.checksum for tensor in named)))


def _said_by(header: Header) -> tuple[ShardLabel, tuple[TensorEntry, ...]]:
    try:
        label = canonical.loads(ShardLabel, header.metadata[LABEL])
    except (KeyError, ValueError, TypeError, InvalidInput) as err:
        raise CheckpointRefused("not a shard: it does not say which") from err
    return label, tuple(
        TensorEntry(name=t.name, shape=t.shape, dtype=t.dtype, num_bytes=t.stop - t.start, offset=t.start)
        for t in header.tensors
    )
