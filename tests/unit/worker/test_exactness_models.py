"""Unmodified models, cut by themselves, end with the bits of a plain PyTorch loop on the uncut model."""

import pytest

from tests.support.combinations import Examples
from tests.support.whole_models import MODELS

EXAMPLES = {name: Examples({name: example}) for name, example in MODELS.items()}
SEEDS = (59, 100, 141)  # zero-bubble, work-conserving and Varuna, with P from 2 to 4 and M from 4 to 6


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("seed", SEEDS)
def test_an_unmodified_model_has_the_bits_of_the_plain_loop(name: str, seed: int) -> None:
    drawn = EXAMPLES[name].drawn(seed)
    assert EXAMPLES[name].faults(drawn) == [], drawn
