"""A job trains through parts of two recorded spot pools, much faster, to the bits of a quiet run."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.support.histories import Truth, undisturbed
from tests.support.pool import Pool, copy_job, pool

RECORDINGS = Path(__file__).parents[1] / "data" / "traces"
JOB = {"env": '{STEP_PAUSE_S: "0.02"}', "nodes": "{min: 1, max: 3}"}


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """The bits an undisturbed process arrives at."""
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
        ("aws-p3-us-east.csv", 600.0, 120.0, 0.0),
        ("gcp-v100-us-east1c.txt", 3000.0, 150.0, 2.0),
    ],
)
def test_a_job_trains_through_a_recorded_pool_to_the_bits_of_a_quiet_run(
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
        assert status["weights_sha256"] == truth.weights_sha256, lent.trail(job)
        committed = {(int(str(row["step"])), row["loss_hex"]) for row in lent.json("steps", job)}
        assert sorted(committed) == list(enumerate(truth.losses)), "a step done again has the same loss"
        told = Counter(str(event["what"]) for event in lent.json("events"))
        assert told["node-left"] + told["node-lost"] >= 2, told
        assert (told["node-notice"] > 0) == (notice_s > 0), told
        assert told["morph"] >= 1, "the job was held up by none of them"
