"""The header of a message: kind, tag and the shapes of its tensors as bytes; moves nothing."""

import struct
from collections.abc import Sequence
from enum import IntEnum
from functools import lru_cache
from math import prod
from typing import NamedTuple

import torch
from torch import Tensor

MAX_HEADER_BYTES = 1 << 20
MAX_TENSOR_BYTES = 1 << 38
_MAX_NDIM = 64

_PREFIX = struct.Struct("<BBHI")  # kind, bytes of the tag, number of tensors, bytes after the prefix
PREFIX_BYTES = _PREFIX.size
_SLAB = struct.Struct("<BBB")  # type, flags, number of dimensions; the dimensions follow
_REQUIRES_GRAD, _ON_DEVICE = 1, 2

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
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.uint16,
    torch.uint32,
    torch.uint64,
)
_CODES = {dtype: code for code, dtype in enumerate(_DTYPES)}


class Kind(IntEnum):
    """What a message is for."""

    TENSORS = 0
    GOODBYE = 1  # the sender leaves in peace
    ABORT = 2  # a rank failed; one tensor of bytes says which and why
    BEAT = 3  # the sender lives; nothing more


class Slab(NamedTuple):  # these two are made and hashed with every message, which a dataclass is slow at
    """One tensor of a message."""

    shape: tuple[int, ...]
    dtype: torch.dtype
    requires_grad: bool
    on_device: bool  # on the accelerator, not in host memory


class Description(NamedTuple):
    """A whole message without its contents."""

    kind: Kind
    tag: str
    slabs: tuple[Slab, ...]


_LAST_KIND = max(Kind)
GOODBYE = Description(Kind.GOODBYE, "", ())


def describe(tag: str, tensors: Sequence[Tensor], kind: Kind = Kind.TENSORS) -> Description:
    """Return the description of a message."""
    slabs = [Slab(t.shape, t.dtype, t.requires_grad, not t.is_cpu) for t in tensors]
    return Description(kind, tag, tuple(slabs))


@lru_cache(maxsize=1024)
def encode(description: Description) -> bytes:
    """Return the header: a prefix of `PREFIX_BYTES` and what it announces.

    Raises TypeError on a tensor of a type that no message carries.
    """
    tag = description.tag.encode()
    parts = [tag]
    for slab in description.slabs:
        if slab.dtype not in _CODES:
            raise TypeError(f"a tensor of {slab.dtype} cannot go from one rank to another")
        flags = _REQUIRES_GRAD * slab.requires_grad + _ON_DEVICE * slab.on_device
        parts.append(_SLAB.pack(_CODES[slab.dtype], flags, len(slab.shape)))
        parts.append(struct.pack(f"<{len(slab.shape)}q", *slab.shape))
    body = b"".join(parts)
    assert len(body) <= MAX_HEADER_BYTES, "a message of too many tensors"
    return _PREFIX.pack(description.kind, len(tag), len(description.slabs), len(body)) + body


def body_bytes(prefix: bytes | bytearray | memoryview) -> int:
    """Return how many bytes of header follow a prefix; raises ValueError on one that is not ours."""
    kind, _, _, length = _PREFIX.unpack_from(prefix)
    if kind > _LAST_KIND or length > MAX_HEADER_BYTES:
        raise ValueError(f"a message header of kind {kind} claims {length} bytes")
    return int(length)


@lru_cache(maxsize=1024)
def decode(header: bytes) -> Description:
    """Return what `encode` was given; raises ValueError on anything else."""
    kind, tag_bytes, count, length = _PREFIX.unpack_from(header)
    position = PREFIX_BYTES + tag_bytes
    slabs = []
    try:
        tag = header[PREFIX_BYTES:position].decode()
        for _ in range(count):
            slab, position = _slab(header, position)
            slabs.append(slab)
    except (struct.error, UnicodeDecodeError, IndexError) as err:
        raise ValueError("a message header ends early") from err
    if position != PREFIX_BYTES + length or len(header) != position:
        raise ValueError(f"a message header of {len(header)} bytes describes {position}")
    return Description(Kind(kind), tag, tuple(slabs))


def _slab(header: bytes, position: int) -> tuple[Slab, int]:
    code, flags, ndim = _SLAB.unpack_from(header, position)
    if ndim > _MAX_NDIM:
        raise ValueError(f"a message header holds a tensor of {ndim} dimensions")
    dtype = _DTYPES[code]
    position += _SLAB.size
    shape = struct.unpack_from(f"<{ndim}q", header, position)
    if any(n < 0 for n in shape) or prod(max(n, 1) for n in shape) * dtype.itemsize > MAX_TENSOR_BYTES:
        raise ValueError(f"a message header holds a tensor of shape {list(shape)}")
    slab = Slab(shape, dtype, bool(flags & _REQUIRES_GRAD), bool(flags & _ON_DEVICE))
    return slab, position + 8 * ndim
