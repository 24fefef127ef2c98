"""Three random histories of a spot pool, and layouts as real processes; the long campaign is `make chaos`."""

import pathlib

import pytest

from tests.support.histories import Truth, final_state, survive, undisturbed
from tests.support.pool import copy_job, pool


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """The bits an undisturbed process arrives at."""
    return undisturbed(tmp_path_factory.mktemp("truth"))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_no_history_changes_a_bit(seed: int, tmp_path: pathlib.Path, truth: Truth) -> None:
    status = survive(seed, tmp_path, truth)
    assert status["weights_sha256"] == truth.weights_sha256


@pytest.mark.timeout(400)
def test_layouts_as_real_processes_end_in_the_same_bits(tmp_path: pathlib.Path, truth: Truth) -> None:
    """Weights, losses and optimizer state, for layouts on up to six slots."""
    states = {}
    with pool(tmp_path / "home") as lent:
        lent.up(3, "--slots", "2")
        for stages, replicas in [(1, 1), (2, 3), (3, 1), (2, 2)]:
            layout = f"{{stages: {stages}, replicas: {replicas}}}"
            folder = copy_job("tiny", tmp_path / f"{stages}x{replicas}", layout=layout)
            job = lent.submit(folder)
            status = lent.wait_end(job)
            assert status["state"] == "succeeded", lent.trail(job)
            assert status["layout"] == f"{stages}x{replicas}"
            losses = [record["loss_hex"] for record in lent.json("steps", job)]
            assert (status["weights_sha256"], losses) == (truth.weights_sha256, list(truth.losses))
            states[stages, replicas] = final_state(lent, job)
    reference = states[1, 1]
    assert any(name.startswith("optim:") for name in reference)
    assert all(state == reference for state in states.values())
