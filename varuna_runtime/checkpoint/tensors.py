"""Tensors to and from shards: who writes which, host copies, encoding, loading. The only torch user here."""

from collections.abc import Collection, Iterator, Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load as decode_safetensors
from safetensors.torch import save as encode_safetensors
from torch import Tensor

from varuna_runtime.checkpoint import shards
from varuna_runtime.spec.errors import CheckpointRefused, ObjectMissing
from varuna_runtime.spec.manifest import Manifest, ShardEntry
from varuna_runtime.spec.pieces import PieceName
from varuna_runtime.store import Store

SegmentTensors = Mapping[int, Mapping[str, Tensor]]


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


class HostCopies:
    """Host memory for one snapshot, kept from save to save; pinned when the tensors live on a GPU."""

    def __init__(self) -> None:
        self._kept: dict[str, Tensor] = {}

    def take(self, part: SegmentTensors) -> dict[int, dict[str, Tensor]]:
        """Copy the tensors; the next call overwrites the result, so its reader must be done by then."""
        copies = {
            segment: {name: self._copy(name, tensor) for name, tensor in held.items()}
            for segment, held in part.items()
        }
        if any(tensor.is_cuda for held in part.values() for tensor in held.values()):
            torch.cuda.synchronize()
        return copies

    def _copy(self, name: str, tensor: Tensor) -> Tensor:
        kept = self._kept.get(name)
        if kept is None or kept.shape != tensor.shape or kept.dtype != tensor.dtype:
            kept = torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=tensor.is_cuda)
            self._kept[name] = kept
        return kept.copy_(tensor.detach(), non_blocking=True)


def encode(label: shards.ShardLabel, tensors: Mapping[str, Tensor]) -> bytes:
    """Return the shard's bytes: a function of label, names and values alone."""
    return encode_safetensors(dict(tensors), shards.metadata(label))


def load_segments(
    store: Store, manifest: Manifest, segments: Collection[int], device: torch.device | str
) -> dict[int, dict[str, Tensor]]:
    """Return the tensors of the segments asked for, whatever layout wrote them, reading only their shards.

    Size, SHA-256, label, names, shapes and dtypes are compared with the manifest: CheckpointRefused names
    the object. A segment without tensors comes back empty.
    """
    loaded: dict[int, dict[str, Tensor]] = {segment: {} for segment in segments}
    for segment, tensors in iter_shards(store, manifest, segments):
        loaded[segment] |= {name: tensor.to(device) for name, tensor in tensors.items()}
    return loaded


def iter_shards(
    store: Store, manifest: Manifest, segments: Collection[int]
) -> Iterator[tuple[int, dict[str, Tensor]]]:
    """Yield (segment, tensors) of each of their shards, one in memory at a time; see `load_segments`."""
    for entry in manifest.shards:
        if entry.segment in segments:
            yield entry.segment, _load_shard(store, entry)


def _load_shard(store: Store, entry: ShardEntry) -> dict[str, Tensor]:
    try:
        data = store.get(entry.key)
        shards.check(entry, data)
        return decode_safetensors(data)
    except ObjectMissing as err:
        raise CheckpointRefused(f"{entry.key}: missing") from err
    except SafetensorError as err:
        raise CheckpointRefused(f"{entry.key}: {err}") from err
