"""Random histories of a spot pool: `make chaos`, or `CHAOS_SEEDS=17,99 make chaos` for chosen ones."""

import os
import pathlib

import pytest

from tests.support.histories import Truth, survive, undisturbed

SEEDS = [int(s) for s in os.environ.get("CHAOS_SEEDS", "").split(",") if s] or list(range(100, 130))


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """The bits an undisturbed process arrives at."""
    return undisturbed(tmp_path_factory.mktemp("truth"))


@pytest.mark.chaos
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_history_changes_a_bit(seed: int, tmp_path: pathlib.Path, truth: Truth) -> None:
    status = survive(seed, tmp_path, truth)
    assert status["weights_sha256"] == truth.weights_sha256
