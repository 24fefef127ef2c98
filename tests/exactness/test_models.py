"""Sixty drawn combinations over real models, each with the bits of a plain loop on the uncut model."""

import pytest

from tests.support.combinations import GRID, Examples
from tests.support.whole_models import MODELS

EXAMPLES = Examples(MODELS)


@pytest.mark.timeout(300)  # the first of each model is traced
@pytest.mark.parametrize("seed", range(11 * GRID, 11 * GRID + 60 * 7, 7))
def test_a_drawn_combination_has_the_bits_of_the_plain_loop(seed: int) -> None:
    drawn = EXAMPLES.drawn(seed)
    assert EXAMPLES.faults(drawn) == [], drawn
