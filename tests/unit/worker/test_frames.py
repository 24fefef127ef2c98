import pytest
import torch

from varuna_runtime.worker.link.frames import (
    GOODBYE,
    MAX_HEADER_BYTES,
    PREFIX_BYTES,
    Description,
    Kind,
    Slab,
    body_bytes,
    decode,
    describe,
    encode,
)


@pytest.mark.parametrize("count", [0, 1, 5, 200])
def test_a_description_survives_the_wire(count: int) -> None:
    tensors = [
        torch.zeros((2,) * (i % 4), dtype=torch.bfloat16, requires_grad=i % 2 == 0) for i in range(count)
    ]
    description = describe("gradients 3", tensors)
    header = encode(description)
    assert body_bytes(header[:PREFIX_BYTES]) == len(header) - PREFIX_BYTES
    assert decode(header) == description


@pytest.mark.parametrize("dtype", [torch.bool, torch.complex128, torch.float8_e5m2, torch.uint64])
def test_every_type_survives_the_wire(dtype: torch.dtype) -> None:
    description = describe("t", [torch.zeros(3, dtype=dtype)])
    assert decode(encode(description)) == description


def test_a_type_that_no_message_carries_is_named() -> None:
    with pytest.raises(TypeError, match=r"torch\.complex32 cannot go from one rank to another"):
        encode(Description(Kind.TENSORS, "t", (Slab((3,), torch.complex32, False, False),)))


def test_every_kind_survives_the_wire() -> None:
    aborted = describe("", [torch.zeros(3, dtype=torch.uint8)], Kind.ABORT)
    assert [decode(encode(d)) for d in (GOODBYE, aborted)] == [GOODBYE, aborted]


def test_a_prefix_that_is_not_ours_is_an_error() -> None:
    for prefix in (b"GET / HT", bytes([0, 0, 0, 0]) + (MAX_HEADER_BYTES + 1).to_bytes(4, "little")):
        with pytest.raises(ValueError, match="a message header"):
            body_bytes(prefix)


GOOD = encode(describe("tag", [torch.zeros(2, 3)]))


@pytest.mark.parametrize(
    "header",
    [
        GOOD[:-1],
        GOOD + b"\0",
        GOOD.replace(b"tag", b"\xff\xff\xff"),
        GOOD[:11] + b"\xc8" + GOOD[12:],  # type 200
        GOOD[:13] + b"\xc8" + GOOD[14:],  # 200 dimensions
        GOOD[:14] + b"\xff" * 8 + GOOD[22:],  # a length of -1
        GOOD[:14] + b"\xff" * 7 + b"\x7f" + GOOD[22:],  # 2^63 - 1 elements and more
        GOOD[:14] + b"\0" * 8 + b"\xff" * 7 + b"\x7f",  # none, but strides that no integer holds
    ],
    ids=["short", "long", "text", "type", "dimensions", "negative", "huge", "strides"],
)
def test_a_header_that_is_not_ours_is_an_error(header: bytes) -> None:
    with pytest.raises(ValueError, match="a message header"):
        decode(header)
