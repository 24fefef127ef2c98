"""A job trains through parts of two recorded spot pools, much faster, with the losses of a quiet run."""

import json
from pathlib import Path

import pytest

from tests.support.histories import Truth, undisturbed
from tests.support.pool import Pool, copy_job, pool
from varuna_manager.cloud.local_machines import LocalMachines
from varuna_manager.cloud.provider import InstancePhase
from varuna_manager.home import Home

RECORDINGS = Path(__file__).parents[1] / "data" / "traces"
STEPS = 80
JOB = {"env": '{STEP_PAUSE_S: "0.03"}', "nodes": "{min: 1, max: 3}", "steps": str(STEPS)}


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """The losses of an undisturbed process; a shorter run has the first of them."""
    return undisturbed(tmp_path_factory.mktemp("truth"))


def replaying(lent: Pool, folder: Path, **recorded: object) -> Pool:
    """Bring up a manager whose nodes come from a recording."""
    settings = {
        "pools": [
            {"name": "here", "provider": "local", "max": 3},
            {"name": "spot", "provider": "trace", "max": 3, **recorded},
        ]
    }
    file = folder / "manager.yaml"
    file.write_text(json.dumps(settings))
    lent.up(0, "--config", str(file))
    return lent


@pytest.mark.timeout(400)
@pytest.mark.parametrize(
    ("name", "start_s", "speed_up", "notice_s"),
    [
        pytest.param("aws-p3-us-east.csv", 1400.0, 120.0, 0.0, marks=pytest.mark.cases),
        ("gcp-v100-us-east1c.txt", 3000.0, 200.0, 2.0),
    ],
)
def test_a_job_trains_through_a_recorded_pool_with_the_losses_of_a_quiet_run(
    tmp_path: Path, truth: Truth, name: str, start_s: float, speed_up: float, notice_s: float
) -> None:
    recorded = {
        "file": str(RECORDINGS / name),
        "start_s": start_s,
        "speed_up": speed_up,
        "notice_s": notice_s,
    }
    with pool(tmp_path / "home") as lent:
        replaying(lent, tmp_path, **recorded)
        job = lent.submit(copy_job("tiny", tmp_path / "job", **JOB))
        status = lent.wait_end(job, 300)
        assert status["state"] == "succeeded", lent.trail(job)
        committed = {(int(str(row["step"])), row["loss_hex"]) for row in lent.json("steps", job)}
        assert sorted(committed) == list(enumerate(truth.losses[:STEPS])), (
            "a step done again has the same loss"
        )
        nodes = LocalMachines(Home(lent.home), "spot").list_nodes()
        taken = [node.node for node in nodes if node.phase is InstancePhase.GONE]
        assert len(taken) >= 2, "the job was over before the recording took anything"
        warned = [node for node in taken if (lent.home / "nodes" / node / "notice.json").exists()]
        assert bool(warned) == (notice_s > 0), taken
