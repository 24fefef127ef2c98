"""The examples as a user runs them, short: on a pool that loses a node, then alone, to the same bits."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.pool import Pool, kill, pool

EXAMPLES = Path(__file__).parents[2] / "examples"


def shortened(name: str, folder: Path, **changes: object) -> Path:
    """Copy an example and change keys of its job file."""
    shutil.copytree(EXAMPLES / name, folder)
    path = folder / "job.yaml"
    text = path.read_text()
    for key, value in changes.items():
        text, count = re.subn(rf"^(\s*{key}:).*$", rf"\1 {value}", text, flags=re.MULTILINE)
        assert count == 1, key
    path.write_text(text)
    return folder


def weights_alone(folder: Path) -> str:
    """Run the script alone with the job file; return the digest that it prints."""
    done = subprocess.run(
        [sys.executable, "train.py"],
        cwd=folder,
        env={**os.environ, "VARUNA_JOB": "job.yaml", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found = re.search(r"^weights ([0-9a-f]{64})$", done.stdout, re.MULTILINE)
    assert found, done.stdout
    return found.group(1)


def kill_a_node_at_work(lent: Pool, job: str) -> None:
    """SIGKILL the agent of a node that runs a rank of the job."""
    ranks = {str(n["node"]): n["ranks"] for n in lent.json("nodes")}
    kill(next(pid for node, pid in sorted(lent.node_pids().items()) if ranks.get(node)))


@pytest.mark.timeout(600)  # imports and traces of several processes; half a minute on two idle cores
@pytest.mark.parametrize(
    "name", ["vision", *(pytest.param(name, marks=pytest.mark.cases) for name in ("hf_gpt2", "bert"))]
)
def test_an_example_survives_a_killed_node_with_the_weights_of_a_lone_run(name: str, tmp_path: Path) -> None:
    folder = shortened(name, tmp_path / name, steps=24, interval_steps=4)
    with pool(tmp_path / "home") as lent:
        lent.up(3)
        job = lent.submit(folder)
        lent.wait(job, lambda s: int(str(s["step"])) >= 2, timeout=300)
        kill_a_node_at_work(lent, job)
        status = lent.wait_end(job, timeout=300)
        assert status["state"] == "succeeded", lent.trail(job)
        assert int(str(status["morphs"])) >= 1, lent.trail(job)
        assert status["layout"] == "2x1"
    assert status["weights_sha256"] == weights_alone(folder)
