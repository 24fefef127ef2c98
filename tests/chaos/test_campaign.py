"""Two hundred faults on local pools: `make chaos`, or `CHAOS_SEEDS=17,99 make chaos` for chosen seeds."""

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.chaos.campaign import Survival, forget, report, survive, undisturbed
from tests.support.chaos.checker import Training

SEEDS = [int(s) for s in os.environ.get("CHAOS_SEEDS", "").split(",") if s] or list(range(100, 108))
FAULTS = 26  # of a seed, besides those that bring a job into the phase of the next one


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Training:
    """The bits an undisturbed process arrives at."""
    return undisturbed(tmp_path_factory.mktemp("truth"))


@pytest.fixture(scope="module")
def survivals() -> Iterator[list[Survival]]:
    """What came of each seed; all of it is told at the end."""
    gathered: list[Survival] = []
    yield gathered
    if gathered:
        print(f"\n{report(gathered)}")


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_fault_changes_a_bit(seed: int, truth: Training, survivals: list[Survival]) -> None:
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-", dir="/tmp")) / "kept"
    survival = survive(seed, folder, truth, size=FAULTS)
    survivals.append(survival)
    print(f"\nseed {seed}\n{report([survival])}")
    wrong = "\n".join(survival.faults)
    again = f"CHAOS_SEEDS={seed} make chaos"
    assert not survival.faults, f"{wrong}\n\n{survival.story}\n\nagain: {again}\nlogs: {folder}"
    forget(folder.parent)
