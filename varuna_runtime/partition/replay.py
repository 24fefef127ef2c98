"""Replays the recorded construction of single tensors on the CPU, one at a time."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from varuna_runtime.partition.recording import Draw, RecordedOp, Recording, TensorRef
from varuna_runtime.partition.seeding import preserved_random_state


@contextmanager
def replaying() -> Iterator[None]:
    """The state replays need: no autograd, one thread (a QR's bits depend on it), random state put back."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with torch.no_grad(), preserved_random_state():
            yield
    finally:
        torch.set_num_threads(threads)


def replay(recording: Recording, ref: TensorRef, draws: Mapping[int, Draw], seed: int) -> Tensor:
    """Return the recorded tensor's real values in storage of their own; call inside `replaying`."""
    storages = _Storages(recording)
    for index in recording.closure(ref.storage):
        op = recording.ops[index]
        if op.is_random:
            torch.default_generator.manual_seed(draws[index].key(seed))
        storages.apply(op)
    value = storages.view(ref)
    fills_storage = value.untyped_storage().nbytes() == value.numel() * value.element_size()
    return value if fills_storage and len(ref.extent) == value.numel() else value.clone()


class _Storages:
    """Real storages, by the number of the recorded one."""

    def __init__(self, recording: Recording) -> None:
        self._recording = recording
        self._real: dict[int, torch.UntypedStorage] = {}

    def apply(self, op: RecordedOp) -> None:
        args, kwargs = tree_map_only(TensorRef, self.view, (op.args, dict(op.kwargs)))
        result: Any = op.func(*args, **kwargs)
        for leaf, ref in zip(tree_leaves(result), op.created, strict=True):
            if ref is not None:
                self._real[ref.storage] = _in_layout(leaf, ref).untyped_storage()

    def view(self, ref: TensorRef) -> Tensor:
        storage = self._real.get(ref.storage)
        if storage is None:
            storage = self._recording.constants[ref.storage].clone().untyped_storage()
            self._real[ref.storage] = storage
        return torch.empty(0, dtype=ref.dtype).set_(storage, ref.offset, ref.size, ref.stride)


def _in_layout(value: Tensor, ref: TensorRef) -> Tensor:
    """Return `value` laid out as the meta kernel said, which later views rely on."""
    if value.stride() == ref.stride and value.storage_offset() == ref.offset:
        return value
    return torch.empty_strided(ref.size, ref.stride, dtype=ref.dtype).copy_(value)
