"""Ten grids of drawn combinations, each with the bits of a plain PyTorch loop on the uncut model."""

import pytest

from tests.support.combinations import GRID, TOYS, Examples

EXAMPLES = Examples(TOYS)


@pytest.mark.parametrize("seed", range(GRID, 10 * GRID))
def test_a_drawn_combination_has_the_bits_of_the_plain_loop(seed: int) -> None:
    drawn = EXAMPLES.drawn(seed)
    assert EXAMPLES.faults(drawn) == [], drawn
