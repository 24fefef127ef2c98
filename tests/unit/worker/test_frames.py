import pytest
import torch

from varuna_runtime.worker.link.frames import (
    GOODBYE,
    HEADER_WORDS,
    decode,
    describe,
    encode,
    num_rest_words,
)


@pytest.mark.parametrize("count", [0, 1, 5, 200])
def test_a_description_survives_the_wire(count: int) -> None:
    tensors = [
        torch.zeros((2,) * (i % 4), dtype=torch.bfloat16, requires_grad=i % 2 == 0) for i in range(count)
    ]
    description = describe("gradients 3", tensors)
    header, rest = encode(description)
    assert header.numel() == HEADER_WORDS
    assert num_rest_words(header) == (0 if rest is None else rest.numel())
    assert decode(header, rest) == description


def test_goodbye_is_a_message_without_a_tag() -> None:
    assert decode(*encode(GOODBYE)) == GOODBYE


def read(header: torch.Tensor) -> None:
    num_rest_words(header)
    decode(header, None)


@pytest.mark.parametrize("words", [[-1], [1 << 40], [3, 1000], [3, 1, 65, -5], [4, 0, 1, 99, 0]])
def test_a_header_that_is_not_ours_is_an_error(words: list[int]) -> None:
    header = torch.tensor(words + [0] * (HEADER_WORDS - len(words)))
    with pytest.raises(ValueError, match="a message header"):
        read(header)
