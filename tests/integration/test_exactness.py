"""A few drawn combinations as real processes over the real link; `make exactness` runs many."""

from pathlib import Path

import pytest

from tests.support.combinations import GRID, TOYS, Examples
from tests.support.processes import faults, run_all

EXAMPLES = Examples(TOYS)
SEEDS = tuple(range(24, GRID, 31))  # a schedule each, with P from 1 to 5


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("ranks")
    run_all(folder, SEEDS, timeout_s=110)
    return folder


@pytest.mark.parametrize("seed", SEEDS)
def test_processes_end_with_the_bits_of_the_plain_loop(ran: Path, seed: int) -> None:
    assert faults(ran, seed, EXAMPLES) == [], EXAMPLES.drawn(seed)
