"""A real manager grows a job onto scripted agents: only where the launcher is ready."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.fake_agent import FakeAgent
from tests.support.manager_process import ManagerProcess, eventually, submission
from varuna_manager.client import Client
from varuna_runtime.spec.job import Nodes
from varuna_runtime.wire.v1 import agent_pb2


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ManagerProcess]:
    running = ManagerProcess(tmp_path).start()
    yield running
    running.kill()


@contextmanager
def running_on_n1(manager: ManagerProcess, client: Client) -> Iterator[str]:
    """A job that trains on one node, may have two, and does not end."""
    with FakeAgent(manager.address, step_s=0.02) as first:
        first.may_finish.clear()
        wanted = submission(manager.upload(), nodes=Nodes(min=1, max=2), given={"KEY": "v"}, secrets=("KEY",))
        job = client.submit(wanted)
        eventually(lambda: client.job(job).state == "RUNNING")
        yield job


def test_a_job_grows_onto_a_node_when_its_launcher_is_ready(manager: ManagerProcess) -> None:
    with (
        manager.client() as client,
        running_on_n1(manager, client) as job,
        FakeAgent(manager.address, "n2", warms=False) as second,
    ):
        warm = second.wait_for_message("warm").warm
        assert (warm.job, dict(warm.secrets)) == (job, {"KEY": "v"})
        assert second.all_heard("start") == []
        second.report(warm=agent_pb2.WarmReport(job=job, ok=True))
        second.wait_for_message("start")
        eventually(lambda: client.job(job).nodes == 2)


def test_a_node_whose_launcher_fails_shows_why_and_is_told_again_when_it_reconnects(
    manager: ManagerProcess,
) -> None:
    with (
        manager.client() as client,
        running_on_n1(manager, client) as job,
        FakeAgent(manager.address, "n2", warms=False) as second,
    ):
        second.wait_for_message("warm")
        second.report(warm=agent_pb2.WarmReport(job=job, ok=False, reason="no module named data"))
        eventually(lambda: "node-cold" in [event.what for event in client.events(job)])
        (node,) = (node for node in client.nodes() if node.node == "n2")
        assert node.reason == f"spare: cannot open the launcher of job {job}: no module named data"
        manager.kill()
        manager.start()
        second.wait_for_message("warm", count=2)
