"""A real manager over real gRPC, with scripted agents."""

import subprocess
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.fake_agent import FakeAgent
from tests.support.manager_process import ManagerProcess, eventually, submission, until_over
from varuna_manager.client import Client, NoManager, NotFound
from varuna_runtime.spec.errors import Conflict, InvalidInput
from varuna_runtime.spec.job import LayoutChoice
from varuna_runtime.spec.layout import Plan


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ManagerProcess]:
    running = ManagerProcess(tmp_path).start()
    yield running
    running.kill()


@pytest.fixture
def client(manager: ManagerProcess) -> Iterator[Client]:
    with manager.client() as connected:
        yield connected


def test_a_job_is_profiled_planned_trained_and_succeeds(manager: ManagerProcess, client: Client) -> None:
    with FakeAgent(manager.address) as agent:
        job = client.submit(submission(manager.upload(), num_steps=5))
        last = until_over(client, job)
        assert (last.state, last.step, last.reason) == ("SUCCEEDED", 5, last.reason)
        assert last.weights_sha256 == "ab" * 32
        assert [s.step for s in client.steps(job)] == [0, 1, 2, 3, 4]
        assert client.steps(job)[1].loss_hex == (0.5).hex()
        assert isinstance(client.plan(job).outcome, Plan)
        assert [e.what for e in client.events(job)][0] == "submitted"
        agent.wait_for_message("forget")
        agent.wait_for(lambda: agent.unacked == 0)
