"""Faults on one pool: a frozen agent, no node at all, a torn checkpoint, a manager killed in a cancel."""

import os
import pathlib
import signal
from collections.abc import Iterator

import pytest

from tests.support.histories import Truth, undisturbed
from tests.support.pool import Pool, copy_job, kill, pool, wait_until

SLOW = '{STEP_PAUSE_S: "0.02"}'


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """The bits an undisturbed process arrives at."""
    return undisturbed(tmp_path_factory.mktemp("truth"))


@pytest.fixture(scope="module")
def lent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    """A pool in a deep folder, where no socket's path would fit."""
    deep = tmp_path_factory.mktemp("deep") / ("a-long-name-" * 8)
    with pool(deep / "home") as made:
        yield made


def step_of(status: dict[str, object]) -> int:
    return int(str(status["step"]))


def succeeded(lent: Pool, job: str, truth: Truth) -> None:
    status = lent.wait_end(job)
    assert status["state"] == "succeeded", lent.trail(job)
    assert status["weights_sha256"] == truth.weights_sha256, lent.trail(job)


@pytest.mark.timeout(400)
def test_m39_a_node_frozen_past_its_lease_is_fenced_when_it_thaws(
    lent: Pool, tmp_path: pathlib.Path, truth: Truth
) -> None:
    lent.up(2)
    job = lent.submit(copy_job("tiny", tmp_path / "job", env=SLOW))
    lent.wait(job, lambda s: step_of(s) > 3)
    node, agent = sorted(lent.node_pids().items())[0]
    before = set(lent.worker_pids())
    kill(agent, signal.SIGSTOP)
    lent.wait(job, lambda s: s["state"] == "running" and int(str(s["generation"])) > 2)
    kill(agent, signal.SIGCONT)
    wait_until(lambda: not before & set(lent.worker_pids()), "a worker of the old generation goes on")
    succeeded(lent, job, truth)
    assert any(e["what"] == "node-lost" and e["node"] == node for e in lent.json("events"))
    assert lent.node_pids()[node] == agent, "the agent itself need not end"


@pytest.mark.timeout(400)
def test_t7_t14_a_pool_that_shrinks_to_nothing_and_a_checkpoint_torn_meanwhile(
    lent: Pool, tmp_path: pathlib.Path, truth: Truth
) -> None:
    lent.up(2)
    job = lent.submit(copy_job("tiny", tmp_path / "job", env=SLOW))
    lent.wait(job, lambda s: step_of(s) > 12)
    for agent in lent.node_pids().values():
        kill(agent)
    parked = lent.wait(job, lambda s: s["state"] == "parked", 30)
    assert "PREEMPTED" in str(parked["reason"]), parked
    folder = lent.home / "store" / "jobs" / job
    newest = max(folder.rglob("*.safetensors"), key=lambda path: (path.parent.parent.name, path.name))
    os.truncate(newest, newest.stat().st_size // 2)
    lent.up(1)
    succeeded(lent, job, truth)


@pytest.mark.timeout(400)
def test_m5_a_cancel_is_honoured_by_the_manager_that_follows_a_killed_one(
    lent: Pool, tmp_path: pathlib.Path
) -> None:
    lent.up(2)
    job = lent.submit(copy_job("tiny", tmp_path / "job", env=SLOW))
    lent.wait(job, lambda s: step_of(s) > 3)
    lent.run("cancel", job)
    kill(lent.manager_pid())
    lent.up(2)
    assert lent.wait_end(job)["state"] == "cancelled"
    wait_until(lambda: not lent.worker_pids(), "workers of a cancelled job go on")
