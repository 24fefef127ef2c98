"""The header of a safetensors object, doubted in every field before any of it is believed; torch-free.

The layout of such an object: an 8-byte little-endian header length, a JSON header, the tensors' bytes.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from mmap import mmap
from typing import Any

from varuna_runtime.spec.errors import CheckpointRefused

LIMIT_BYTES = 100_000_000  # of a header, as the format has it
MOST_DIMENSIONS = 64
LONGEST_NAME = 2048
_METADATA = "__metadata__"

DTYPES = {
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
"""From the format's names of element types to torch's."""

CODES = {name: code for code, name in DTYPES.items()}
"""From torch's names of element types to the format's."""

ITEM_BYTES = {
    "float64": 8,
    "float32": 4,
    "float16": 2,
    "bfloat16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int64": 8,
    "int32": 4,
    "int16": 2,
    "int8": 1,
    "uint64": 8,
    "uint32": 4,
    "uint16": 2,
    "uint8": 1,
    "bool": 1,
    "complex64": 8,
}


Readable = bytes | mmap | memoryview


@dataclass(frozen=True, slots=True, kw_only=True)
class Placed:
    """A tensor and its bytes, [start, stop) counted from the beginning of the object."""

    name: str
    dtype: str  # torch's name
    shape: tuple[int, ...]
    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """A header whose tensors fill the rest of the object, each byte once."""

    metadata: dict[str, Any]
    tensors: tuple[Placed, ...]  # by name


def header_of(data: Readable, num_bytes: int | None = None) -> Header:
    """Return the header of an object; CheckpointRefused says what is wrong with it.

    `data` is the whole object, or its begin with all of the header; `num_bytes` then says how long it is.
    """
    if len(data) < 8:
        raise CheckpointRefused("not a safetensors object: it ends inside its header")
    begin = 8 + int.from_bytes(bytes(data[0:8]), "little")
    if begin > len(data):
        raise CheckpointRefused("not a safetensors object: it ends inside its header")
    if begin > LIMIT_BYTES:
        raise CheckpointRefused(f"not a safetensors object: a header of {begin} bytes")
    entries = _entries(bytes(data[8:begin]))
    metadata = entries.pop(_METADATA, {})
    tensors = tuple(_placed(name, entries[name], begin) for name in sorted(entries))
    _refuse_gaps(tensors, begin, len(data) if num_bytes is None else num_bytes)
    return Header(metadata=metadata if isinstance(metadata, dict) else {}, tensors=tensors)


def size_of(dtype: str, shape: Sequence[object]) -> int:
    """Return the bytes of a tensor; CheckpointRefused when there can be no such tensor."""
    if dtype not in ITEM_BYTES:
        raise CheckpointRefused(f"elements of the unknown type {dtype[:40]!r}")
    if len(shape) > MOST_DIMENSIONS:
        raise CheckpointRefused(f"a tensor of {len(shape)} dimensions")
    num_bytes = ITEM_BYTES[dtype]
    for length in shape:
        if type(length) is not int or not 0 <= length < 2**63:
            raise CheckpointRefused("a tensor whose shape is none")
        num_bytes *= length
    if num_bytes >= 2**63:
        raise CheckpointRefused("a tensor larger than any memory")
    return num_bytes


def _entries(text: bytes) -> dict[str, Any]:
    try:
        found = json.loads(text, object_pairs_hook=_unique)
    except (ValueError, RecursionError) as err:
        raise CheckpointRefused("its header does not parse") from err
    if not isinstance(found, dict):
        raise CheckpointRefused("its header does not parse")
    return found


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name twice")
    return found


def _placed(name: str, entry: object, begin: int) -> Placed:
    match entry:
        case {"dtype": str(kind), "shape": list(shape), "data_offsets": [int(first), int(last)], **others}:
            dtype = DTYPES.get(kind, kind)
            if not others and len(name) <= LONGEST_NAME and last - first == size_of(dtype, shape):
                return Placed(
                    name=name, dtype=dtype, shape=tuple(shape), start=begin + first, stop=begin + last
                )
    raise CheckpointRefused(f"its header lies about the tensor {name[:80]!r}")


def _refuse_gaps(tensors: Sequence[Placed], begin: int, end: int) -> None:
    reached = begin
    for tensor in sorted(tensors, key=lambda tensor: (tensor.start, tensor.stop)):
        if tensor.start != reached:
            raise CheckpointRefused("its tensors overlap, or leave bytes between them")
        reached = tensor.stop
    if reached != end:
        raise CheckpointRefused("its tensors do not add up to its size")
