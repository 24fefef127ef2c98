"""Losses without a word on a local pool: everything of a node stopped, and one worker alone."""

import pathlib
import signal
from collections.abc import Iterator

import pytest

from tests.support.histories import Truth, undisturbed
from tests.support.pool import Pool, children, copy_job, kill, pool, wait_until

SLOW = '{STEP_PAUSE_S: "0.02"}'


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """The bits an undisturbed process arrives at."""
    return undisturbed(tmp_path_factory.mktemp("truth"))


@pytest.fixture(scope="module")
def lent(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pool]:
    with pool(tmp_path_factory.mktemp("silent") / "home") as made:
        yield made


def generation_of(status: dict[str, object]) -> int:
    return int(str(status["generation"]))


def training(lent: Pool, folder: pathlib.Path) -> tuple[str, int]:
    """Return a job under way on two nodes, and its generation."""
    lent.up(2)
    job = lent.submit(copy_job("tiny", folder, env=SLOW))
    status = lent.wait(job, lambda s: int(str(s["step"])) > 3)
    return job, generation_of(status)


def whys(lent: Pool, what: str) -> list[str]:
    return [str(event["why"]) for event in lent.json("events") if event["what"] == what]


def succeeded(lent: Pool, job: str, truth: Truth) -> None:
    status = lent.wait_end(job)
    assert status["state"] == "succeeded", lent.trail(job)
    assert status["weights_sha256"] == truth.weights_sha256, lent.trail(job)


@pytest.mark.timeout(400)
def test_a_node_stopped_whole_is_lost_by_two_who_hear_nothing_and_never_trains_on(
    lent: Pool, tmp_path: pathlib.Path, truth: Truth
) -> None:
    job, generation = training(lent, tmp_path / "job")
    node, agent = sorted(lent.node_pids().items())[0]
    stopped = [agent, *(pid for child in children(agent) for pid in (child, *children(child)))]
    for pid in stopped:
        kill(pid, signal.SIGSTOP)
    try:
        lent.wait(job, lambda s: s["state"] == "running" and generation_of(s) > generation)
    finally:
        for pid in stopped:
            kill(pid, signal.SIGCONT)
    wait_until(lambda: not set(stopped) & set(lent.worker_pids()), "a worker that thawed goes on")
    succeeded(lent, job, truth)
    assert any(why.startswith("silent: its agent not heard") for why in whys(lent, "node-lost")), lent.trail(
        job
    )
    assert lent.node_pids()[node] == agent, "the agent itself need not end"


@pytest.mark.timeout(400)
def test_a_worker_stopped_alone_costs_its_generation_and_not_its_node(
    lent: Pool, tmp_path: pathlib.Path, truth: Truth
) -> None:
    job, generation = training(lent, tmp_path / "job")
    num_lost = len(whys(lent, "node-lost"))
    kill(lent.worker_pids()[0], signal.SIGSTOP)
    lent.wait(job, lambda s: s["state"] == "running" and generation_of(s) > generation)
    succeeded(lent, job, truth)
    assert any("the process has been stopped" in why for why in whys(lent, "rank-failed")), lent.trail(job)
    assert len(whys(lent, "node-lost")) == num_lost
