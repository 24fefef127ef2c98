"""A few faults of the campaign, and layouts as real processes; `make cases` and `make chaos` have more."""

import pathlib

import pytest

from tests.support.chaos import campaign
from tests.support.histories import STEPS, Truth, final_state, undisturbed
from tests.support.pool import copy_job, kill, pool, wait_until
from varuna_runtime.checkpoint import complete_steps
from varuna_runtime.store import open_store


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """The bits an undisturbed process arrives at."""
    return undisturbed(tmp_path_factory.mktemp("truth"))


@pytest.mark.timeout(400)
@pytest.mark.parametrize("seed", [3, *(pytest.param(seed, marks=pytest.mark.cases) for seed in (0, 2))])
def test_no_fault_changes_a_bit(seed: int, tmp_path: pathlib.Path) -> None:
    training = campaign.undisturbed(tmp_path, steps=240)
    survival = campaign.survive(seed, tmp_path / "survived", training, size=6)
    assert not survival.faults, "\n".join((*survival.faults, survival.story))


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    "layouts", [[(3, 1), (2, 3)], pytest.param([(1, 1), (2, 2)], marks=pytest.mark.cases)]
)
def test_layouts_as_real_processes_end_in_the_same_bits(
    layouts: list[tuple[int, int]], tmp_path: pathlib.Path, truth: Truth
) -> None:
    """Weights, losses and optimizer state, for layouts on up to six slots."""
    states = {}
    with pool(tmp_path / "home") as lent:
        lent.up(3, "--slots", "2")
        for stages, replicas in layouts:
            layout = f"{{stages: {stages}, replicas: {replicas}}}"
            folder = copy_job("tiny", tmp_path / f"{stages}x{replicas}", layout=layout)
            job = lent.submit(folder)
            status = lent.wait_end(job)
            assert status["state"] == "succeeded", lent.trail(job)
            assert status["layout"] == f"{stages}x{replicas}"
            steps = lent.json("steps", job)
            again = [r for r, before in zip(steps[1:], steps, strict=False) if r["step"] == before["step"]]
            assert not again, f"steps were done again: {again}\n{lent.trail(job)}"
            losses = [record["loss_hex"] for record in steps]
            assert (status["weights_sha256"], losses) == (truth.weights_sha256, list(truth.losses))
            states[stages, replicas] = final_state(lent, job)
    reference = states[layouts[0]]
    assert any(name.startswith("optim:") for name in reference)
    assert all(state == reference for state in states.values())


@pytest.mark.timeout(400)
def test_steps_committed_while_no_manager_listened_outlive_the_node_that_reported_them(
    tmp_path: pathlib.Path, truth: Truth
) -> None:
    folder = copy_job("tiny", tmp_path / "job", env='{STEP_PAUSE_S: "0.03"}')
    with pool(tmp_path / "home") as lent:
        lent.up(1)
        job = lent.submit(folder)
        told = int(str(lent.wait(job, lambda s: int(str(s["step"])) > 10)["step"]))
        kill(lent.manager_pid())
        store = open_store(f"file://{lent.home}/store")
        wait_until(lambda: max(complete_steps(store, job), default=0) > told + 20, "no step became durable")
        (agent,) = lent.node_pids().values()
        kill(agent)
        lent.up(1)
        lent.wait_end(job)
        losses = {int(str(r["step"])): r["loss_hex"] for r in lent.json("steps", job)}
        assert [losses.get(step) for step in range(STEPS)] == list(truth.losses), lent.trail(job)
