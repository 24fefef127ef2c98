"""What the construction of a model did to its tensors: a log of operations on the meta device.

Holds no weights; the only real values kept are constants that the construction itself brought.
"""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from varuna_runtime.spec import rng


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorRef:
    """A tensor as a view of a recorded storage."""

    storage: int
    dtype: torch.dtype
    size: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int

    @property
    def extent(self) -> range:
        """Element positions it spans inside its storage; empty for an empty tensor."""
        if 0 in self.size:
            return range(self.offset, self.offset)
        last = sum((size - 1) * stride for size, stride in zip(self.size, self.stride, strict=True))
        return range(self.offset, self.offset + last + 1)


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedOp:
    """One operation that made or changed a storage; tensors in `args` and `kwargs` are TensorRefs."""

    func: Callable[..., Any]
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    reads: tuple[int, ...]  # storages of every tensor argument, written ones too
    writes: tuple[int, ...]
    created: tuple[TensorRef | None, ...]  # one per leaf of the result; None: not a new storage
    is_random: bool


@dataclass(slots=True)
class Recording:
    """The log, with what is needed to replay any single tensor of it."""

    ops: list[RecordedOp] = field(default_factory=list)
    constants: dict[int, Tensor] = field(default_factory=dict)
    writers: dict[int, list[int]] = field(default_factory=lambda: defaultdict(list))

    def append(self, op: RecordedOp) -> None:
        """Log one operation."""
        for storage in op.writes:
            self.writers[storage].append(len(self.ops))
        self.ops.append(op)

    def closure(self, storage: int) -> tuple[int, ...]:
        """Return the operations that made the final content of a storage, in order.

        An operation needs every earlier write to the storages it reads, and nothing else.
        """
        needed: set[int] = set()
        done: dict[int, int] = {}
        pending = [(storage, len(self.ops))]
        while pending:
            wanted, before = pending.pop()
            if done.get(wanted, 0) >= before:
                continue
            done[wanted] = before
            writers = self.writers[wanted]
            for index in writers[: bisect_left(writers, before)]:
                if index not in needed:
                    needed.add(index)
                    pending.extend((read, index) for read in self.ops[index].reads)
        return tuple(sorted(needed))

    def is_random(self, storage: int) -> bool:
        """True if the content of a storage depends on random numbers."""
        return any(self.ops[index].is_random for index in self.closure(storage))


@dataclass(frozen=True, slots=True, kw_only=True)
class Draw:
    """Names a random operation: the n-th of those that belong to tensor `owner`."""

    owner: str
    ordinal: int

    def key(self, seed: int) -> int:
        """Seed of the generator for this operation alone, so that no other draw moves it."""
        return rng.key("draw", rng.init_key(seed=seed, name=self.owner), self.ordinal)


def draws(recording: Recording, refs: Mapping[str, TensorRef]) -> dict[int, Draw]:
    """Name every random operation that the tensors `refs` (in canonical order) depend on.

    It belongs to the tensor whose storage it fills, or, when that has no name in the model, to the first
    tensor that depends on it: then a copy of a tensor replays to the values of its original.
    """
    named: dict[int, str] = {}
    for name, ref in refs.items():
        named.setdefault(ref.storage, name)
    owners: dict[int, str] = {}
    for name, ref in refs.items():
        for index in recording.closure(ref.storage):
            op = recording.ops[index]
            if op.is_random and index not in owners:
                owners[index] = next((named[s] for s in op.writes if s in named), name)
    counts: dict[str, int] = defaultdict(int)
    result: dict[int, Draw] = {}
    for index in sorted(owners):
        owner = owners[index]
        result[index] = Draw(owner=owner, ordinal=counts[owner])
        counts[owner] += 1
    return result
