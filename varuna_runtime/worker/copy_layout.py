"""Where the tensors of a stage lie in the bytes of a copy, and tensors over such bytes."""

import math
import warnings
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from varuna_runtime.spec.copies import CopiedTensor

_ALIGN_BYTES = 64


def arranged(segments: Mapping[int, Mapping[str, Tensor]]) -> tuple[CopiedTensor, ...]:
    """Return a place for every tensor, segment by segment; a function of names, shapes and types alone."""
    found: list[CopiedTensor] = []
    offset = 0
    for segment, tensors in sorted(segments.items()):
        for name, tensor in sorted(tensors.items()):
            found.append(
                CopiedTensor(
                    segment=segment,
                    name=name,
                    shape=tuple(tensor.shape),
                    dtype=str(tensor.dtype).removeprefix("torch."),
                    offset=offset,
                    num_bytes=tensor.nbytes,
                )
            )
            offset += -(-tensor.nbytes // _ALIGN_BYTES) * _ALIGN_BYTES
    return tuple(found)


def size_of(places: Sequence[CopiedTensor]) -> int:
    """Return how many bytes a copy of these tensors has."""
    return max((place.offset + place.num_bytes for place in places), default=0)


def tensor_over(memory: memoryview, place: CopiedTensor, *, start: int = 0) -> Tensor:
    """Return the tensor that lies in `memory`, of which the first byte is the copy's byte `start`.

    No bytes are copied: it is valid as long as the memory is. Raises ValueError where the place makes no
    sense; whoever kept the copy may not be ours.
    """
    dtype = getattr(torch, place.dtype, None)
    count = math.prod(place.shape)
    if not isinstance(dtype, torch.dtype) or count * dtype.itemsize != place.num_bytes:
        raise ValueError(f"{place.name}: {place.num_bytes} bytes of {place.dtype} {list(place.shape)}")
    if not count:
        return torch.empty(place.shape, dtype=dtype)
    with warnings.catch_warnings():  # that the memory is read-only; nobody writes to it
        warnings.simplefilter("ignore", UserWarning)
        flat = torch.frombuffer(memory, dtype=dtype, count=count, offset=place.offset - start)
    return flat.view(place.shape)
