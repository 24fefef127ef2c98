"""Tensors to and from shards: who writes which, encoding, loading. Needs torch."""

from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field

import torch
from safetensors import SafetensorError
from safetensors.torch import load as decode_safetensors
from torch import Tensor

from varuna_runtime.checkpoint import reading, shards
from varuna_runtime.checkpoint.images import Images
from varuna_runtime.spec.errors import CheckpointRefused, ObjectMissing
from varuna_runtime.spec.manifest import Manifest, ShardEntry, TensorEntry
from varuna_runtime.spec.pieces import PieceName
from varuna_runtime.store import Store

SegmentTensors = Mapping[int, Mapping[str, Tensor]]
_FRESH_BYTES = 16 << 20  # of tensors without a target in one batch; two batches are held at a time
_BATCH_BYTES = 256 << 20


def part_of(tensors: SegmentTensors, *, replicas: int, replica: int) -> dict[int, dict[str, Tensor]]:
    """Return the tensors that `replica` writes: whole ones, balanced by bytes over all segments given.

    Every replica of a stage comes to the same split, since it depends on names and sizes only. What a replica
    holds alone it writes itself.
    """
    loads = [0] * replicas
    part: dict[int, dict[str, Tensor]] = {}
    for segment in sorted(tensors):
        held = tensors[segment]
        if own := {name: tensor for name, tensor in held.items() if PieceName.of(name).is_alone}:
            part[segment] = own
        for name in sorted(held.keys() - own.keys(), key=lambda name: (-held[name].nbytes, name)):
            owner = loads.index(min(loads))
            loads[owner] += held[name].nbytes
            if owner == replica:
                part.setdefault(segment, {})[name] = held[name]
    return part


def encode(label: shards.ShardLabel, tensors: Mapping[str, Tensor]) -> bytes:
    """Return the shard's bytes: a function of label, names and values alone."""
    image = Images().image(label, tensors)
    with torch.no_grad():
        for target, source in image.pairs:
            target.copy_(source.detach())
    return bytes(image.memory)


def load_segments(
    store: Store, manifest: Manifest, segments: Collection[int], device: torch.device | str
) -> dict[int, dict[str, Tensor]]:
    """Return the tensors of the segments asked for, whatever layout wrote them, reading only their shards.

    What is in the store is compared with the manifest: CheckpointRefused names the object. A segment without
    tensors comes back empty.
    """
    loaded: dict[int, dict[str, Tensor]] = {segment: {} for segment in segments}
    for segment, tensors in iter_tensors(store, manifest, segments):
        loaded[segment] |= {name: tensor.to(device) for name, tensor in tensors.items()}
    return loaded


def iter_tensors(
    store: Store,
    manifest: Manifest,
    segments: Collection[int],
    targets: Mapping[str, Tensor] | None = None,
) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Yield (segment, some of its tensors) until all came; see `load_segments`.

    A tensor whose name, type and shape is that of a contiguous target on the CPU is read into it, and it is
    the target that comes back; the others are fresh memory, little at a time. After an error some targets
    hold what was read so far.
    """
    wanted = [entry for entry in manifest.shards if entry.segment in segments]
    with reading.readers(store) as submit:
        for batch in _ahead(store, wanted, targets or {}, submit):
            yield batch.entry.segment, batch.finished(store, submit)


@dataclass(slots=True, kw_only=True)
class _Batch:
    """Some tensors of one shard that are being read."""

    entry: ShardEntry
    pieces: list[reading.Piece] = field(default_factory=list)
    tensors: dict[str, Tensor] = field(default_factory=dict)
    checksums: dict[str, str] = field(default_factory=dict)
    futures: list[Future[None]] = field(default_factory=list)
    num_bytes: int = 0
    fresh_bytes: int = 0

    @property
    def is_full(self) -> bool:
        return self.fresh_bytes >= _FRESH_BYTES or self.num_bytes >= _BATCH_BYTES

    def add(self, tensor: TensorEntry, target: Tensor | None) -> None:
        into = target
        if into is None:
            into = torch.empty(tensor.shape, dtype=getattr(torch, tensor.dtype))
            self.fresh_bytes += tensor.num_bytes
        self.num_bytes += tensor.num_bytes
        self.tensors[tensor.name] = into
        self.checksums[tensor.name] = tensor.checksum
        memory = into.detach().reshape(-1).view(torch.uint8).numpy().data
        self.pieces.append(reading.Piece(name=tensor.name, offset=tensor.offset, memory=memory))

    def begin(self, store: Store, submit: reading.Submit) -> None:
        if self.pieces:
            self.futures = reading.begin(store, self.entry.key, self.pieces, submit)

    def finished(self, store: Store, submit: reading.Submit) -> dict[str, Tensor]:
        """Wait and check; CheckpointRefused."""
        try:
            self._check()
        except CheckpointRefused:
            if not store.distrust(self.entry.key):
                raise
            self.begin(store, submit)
            self._check()
        return self.tensors

    def _check(self) -> None:
        reading.wait(self.futures)
        for piece in self.pieces:
            if piece.name in self.checksums:
                reading.check_piece(self.entry, piece, self.checksums[piece.name])
            else:
                shards.check_header(self.entry, piece.memory)


def _ahead(
    store: Store, entries: Sequence[ShardEntry], targets: Mapping[str, Tensor], submit: reading.Submit
) -> Iterator[_Batch]:
    """Yield batches in order, with the next one already being read."""
    before: _Batch | None = None
    for entry in entries:
        for batch in _batches(store, entry, targets):
            batch.begin(store, submit)
            if before is not None:
                yield before
            before = batch
    if before is not None:
        yield before


def _batches(store: Store, entry: ShardEntry, targets: Mapping[str, Tensor]) -> Iterator[_Batch]:
    batch = _Batch(entry=entry)
    if entry.sha256:
        batch.tensors = _decoded(store, entry)
        yield batch
        return
    header = memoryview(bytearray(shards.header_bytes(entry)))
    batch.pieces.append(reading.Piece(name="its header", offset=0, memory=header))
    for tensor in shards.in_order(entry):
        if batch.is_full:
            yield batch
            batch = _Batch(entry=entry)
        batch.add(tensor, _target(tensor, targets.get(tensor.name)))
    yield batch


def _target(tensor: TensorEntry, target: Tensor | None) -> Tensor | None:
    if target is None or target.device.type != "cpu" or not target.is_contiguous():
        return None
    is_alike = tuple(target.shape) == tensor.shape and str(target.dtype) == f"torch.{tensor.dtype}"
    return target if is_alike else None


def _decoded(store: Store, entry: ShardEntry) -> dict[str, Tensor]:
    """Return the tensors of a shard of format 1, which is checked as a whole."""
    try:
        data = store.get(entry.key)
        shards.check(entry, data)
        return decode_safetensors(data)
    except ObjectMissing as err:
        raise CheckpointRefused(f"{entry.key}: missing") from err
    except SafetensorError as err:
        raise CheckpointRefused(f"{entry.key}: {err}") from err
