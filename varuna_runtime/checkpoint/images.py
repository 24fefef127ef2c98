"""Shards in host memory as they will lie in the store: a tensor is copied once, into its place (torch)."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from varuna_runtime.checkpoint import shards
from varuna_runtime.checkpoint.checksums import checksum
from varuna_runtime.checkpoint.staging import Pair
from varuna_runtime.spec.manifest import ShardEntry, TensorEntry

_PAGE_BYTES = 4096


@dataclass(frozen=True, slots=True, kw_only=True)
class Image:
    """One shard; complete once every pair has been copied."""

    arrangement: shards.Arrangement
    memory: memoryview
    pairs: tuple[Pair, ...]

    @property
    def key(self) -> str:
        """Where it belongs."""
        return self.arrangement.label.key

    def entry(self) -> ShardEntry:
        """Return its entry in the manifest; reads all of it."""
        made = self.arrangement
        tensors = (
            replace(t, checksum=checksum(self.memory[t.offset : t.offset + t.num_bytes]))
            for t in made.tensors
        )
        return shards.entry_of(made.label, made.header, tensors)


class Images:
    """Host memory for the shards of one save, kept from save to save; pinned for tensors on a GPU."""

    def __init__(self) -> None:
        self._kept: dict[int, Tensor] = {}

    def image(self, label: shards.ShardLabel, tensors: Mapping[str, Tensor]) -> Image:
        """Return the image of a shard; the next one of its segment takes the same memory."""
        made = shards.arrange(label, (described(name, tensor) for name, tensor in tensors.items()))
        is_pinned = any(tensor.is_cuda for tensor in tensors.values())
        held = self._buffer(label.segment, made.num_bytes, is_pinned=is_pinned)
        memory = held.numpy().data
        memory[: len(made.header)] = made.header
        pairs = tuple(
            (_place(held, tensor, tensors[tensor.name]), tensors[tensor.name]) for tensor in made.tensors
        )
        return Image(arrangement=made, memory=memory, pairs=pairs)

    def reserve(self, segment: int, tensors: Mapping[str, Tensor]) -> None:
        """Take the memory that a save will need, and touch it: that costs more than the copy itself."""
        num_bytes = sum(tensor.nbytes for tensor in tensors.values())
        is_pinned = any(tensor.is_cuda for tensor in tensors.values())
        self._buffer(segment, num_bytes + 512 * len(tensors) + 2 * _PAGE_BYTES, is_pinned=is_pinned).zero_()

    def _buffer(self, segment: int, num_bytes: int, *, is_pinned: bool) -> Tensor:
        """Return that many bytes from a page's begin on, as writes past the page cache want it."""
        kept = self._kept.get(segment)
        if kept is None or len(kept) < num_bytes or kept.is_pinned() < is_pinned:
            kept = torch.empty(num_bytes + _PAGE_BYTES, dtype=torch.uint8, pin_memory=is_pinned)
            kept = kept[-kept.data_ptr() % _PAGE_BYTES :]
            self._kept[segment] = kept
        return kept[:num_bytes]


def described(name: str, tensor: Tensor) -> TensorEntry:
    """Return what a manifest says of a tensor, but for its place and checksum."""
    dtype = str(tensor.dtype).removeprefix("torch.")
    return TensorEntry(name=name, shape=tuple(tensor.shape), dtype=dtype, num_bytes=tensor.nbytes)


def _place(held: Tensor, entry: TensorEntry, like: Tensor) -> Tensor:
    room = held[entry.offset : entry.offset + entry.num_bytes]
    return room.view(like.dtype).view(like.shape) if entry.num_bytes else torch.empty_like(like, device="cpu")
