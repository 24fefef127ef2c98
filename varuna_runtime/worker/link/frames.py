"""The header of a message: its tag and the shapes of its tensors as whole numbers; moves no bytes."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

HEADER_WORDS = 128  # sent with every message; a longer description follows in a second part
MAX_WORDS = 1 << 16
_MAX_TAG_BYTES = 100

_DTYPES = (
    torch.float32,
    torch.float64,
    torch.float16,
    torch.bfloat16,
    torch.int64,
    torch.int32,
    torch.int16,
    torch.int8,
    torch.uint8,
    torch.bool,
    torch.complex64,
    torch.complex128,
)
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}


@dataclass(frozen=True, slots=True)
class Slab:
    """One tensor of a message."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    on_device: bool  # on the accelerator, not in host memory


@dataclass(frozen=True, slots=True)
class Description:
    """A whole message without its contents; an empty tag says goodbye."""

    tag: str
    slabs: tuple[Slab, ...]


GOODBYE = Description("", ())


def describe(tag: str, tensors: Sequence[Tensor]) -> Description:
    """Return the description of a message."""
    slabs = tuple(Slab(tuple(t.shape), t.dtype, t.requires_grad, t.device.type != "cpu") for t in tensors)
    return Description(tag, slabs)


def encode(description: Description) -> tuple[Tensor, Tensor | None]:
    """Return the header and, if the description does not fit, the rest of it."""
    tag = description.tag.encode()
    assert len(tag) <= _MAX_TAG_BYTES, f"tag {description.tag!r} is too long"
    words = [len(tag), *tag, len(description.slabs)]
    for slab in description.slabs:
        flags = slab.requires_grad + 2 * slab.on_device
        words += [_CODES[slab.dtype], flags, len(slab.shape), *slab.shape]
    words = [len(words), *words]
    assert len(words) <= MAX_WORDS, "a message of too many tensors"
    head = words[:HEADER_WORDS] + [0] * (HEADER_WORDS - len(words))
    rest = words[HEADER_WORDS:]
    return torch.tensor(head), torch.tensor(rest) if rest else None


def num_rest_words(header: Tensor) -> int:
    """Return how many words follow the header; raises ValueError on a header that is not ours."""
    length = int(header[0]) + 1
    if not 3 <= length <= MAX_WORDS:
        raise ValueError(f"a message header claims {length} words")
    return max(0, length - HEADER_WORDS)


def decode(header: Tensor, rest: Tensor | None) -> Description:
    """Return what `encode` was given; raises ValueError on anything else."""
    words = iter(header.tolist()[1:] + (rest.tolist() if rest is not None else []))
    try:
        tag = bytes(next(words) for _ in range(_bounded(next(words), _MAX_TAG_BYTES))).decode()
        count = _bounded(next(words), MAX_WORDS)
        slabs = []
        for _ in range(count):
            code, flags, ndim = next(words), next(words), _bounded(next(words), 64)
            shape = tuple(_bounded(next(words), 1 << 48) for _ in range(ndim))
            slabs.append(
                Slab(shape, _DTYPES[_bounded(code, len(_DTYPES) - 1)], bool(flags & 1), bool(flags & 2))
            )
    except (StopIteration, RuntimeError, UnicodeDecodeError) as err:
        raise ValueError("a message header ends early") from err
    return Description(tag, tuple(slabs))


def _bounded(value: int, limit: int) -> int:
    if not 0 <= value <= limit:
        raise ValueError(f"a message header holds {value}; wanted 0 to {limit}")
    return value
