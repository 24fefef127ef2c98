"""A real manager process and what becomes of its agents: repeated, replaced, superseded, gone, drained."""

import os
import signal
import sys
from typing import Any, cast

import grpc
import pytest

from tests.support.fake_agent import FakeAgent
from tests.support.manager_process import (
    ManagerProcess,
    eventually,
    submission,
    until_over,
)
from varuna_manager.client import Client
from varuna_manager.cloud.local_machines import AgentLaunch, LocalMachines
from varuna_runtime.wire.v1 import agent_pb2, agent_pb2_grpc

SLEEPER = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)")


def whats(client: Client, job: str = "") -> list[str]:
    return [event.what for event in client.events(job)]


def test_reports_repeated_after_their_acknowledgement_are_acknowledged_again_and_change_nothing(
    manager: ManagerProcess, client: Client
) -> None:
    with FakeAgent(manager.address) as agent:
        job = client.submit(submission(manager.upload()))
        until_over(client, job)
        agent.wait_for(lambda: agent.unacked == 0)
        before = whats(client)
        finished = agent_pb2.AgentMessage(
            seq=1, rank=agent_pb2.RankReport(job=job, generation=1, ready=agent_pb2.Ready())
        )
        num_acks = len(agent.all_heard("ack"))
        agent.repeat(finished)
        agent.wait_for_message("ack", num_acks + 1)
        assert whats(client) == before


def test_a_newer_connection_of_the_same_agent_replaces_the_older(
    manager: ManagerProcess, client: Client
) -> None:
    with FakeAgent(manager.address, reconnects=False) as old:
        old.wait_for_message("welcome")
        eventually(lambda: [n.state for n in client.nodes()] == ["READY"])
        with FakeAgent(manager.address, incarnation=old.incarnation) as new:
            new.wait_for_message("welcome")
            eventually(lambda: not old.is_connected)
            assert [n.state for n in client.nodes()] == ["READY"]


def test_m39_a_superseded_incarnation_is_fenced(manager: ManagerProcess, client: Client) -> None:
    with FakeAgent(manager.address, reconnects=False) as old:
        old.wait_for_message("welcome")
        eventually(lambda: client.nodes())
        with FakeAgent(manager.address) as new:
            new.wait_for_message("welcome")
            old.wait_for_message("fenced")
            eventually(lambda: client.nodes()[0].incarnation == new.incarnation)


@pytest.mark.parametrize(
    "first",
    [
        agent_pb2.AgentMessage(beat=agent_pb2.Beat()),
        agent_pb2.AgentMessage(hello=agent_pb2.Hello(node="../up", incarnation="i", slots=1)),
        agent_pb2.AgentMessage(hello=agent_pb2.Hello(node="n", incarnation="i", slots=0)),
    ],
)
def test_an_agent_that_does_not_say_a_proper_hello_is_refused(
    manager: ManagerProcess, client: Client, first: agent_pb2.AgentMessage
) -> None:
    with grpc.insecure_channel(manager.address) as channel:
        stream = cast(Any, agent_pb2_grpc).AgentLinkStub(channel).Connect(iter([first]))
        with pytest.raises(grpc.RpcError) as refused:
            next(stream)
    assert refused.value.code() is grpc.StatusCode.INVALID_ARGUMENT
    assert client.nodes() == ()


def test_a_node_whose_process_is_gone_has_left_whatever_its_heartbeats_say(
    manager: ManagerProcess, client: Client
) -> None:
    pool = LocalMachines(manager.home, command=lambda *_: SLEEPER)
    (node,) = pool.add(AgentLaunch(manager=manager.address))
    with FakeAgent(manager.address, node):
        eventually(lambda: [n.state for n in client.nodes()] == ["READY"])
        (sleeper,) = pool.signal_all(signal.SIGKILL)
        eventually(lambda: client.nodes()[0].state == "LEFT")
        assert "has ended" in client.nodes()[0].reason
    os.waitpid(sleeper.process.pid, 0)


def test_t31_m31_an_error_of_the_provider_changes_no_node(manager: ManagerProcess, client: Client) -> None:
    manager.home.pool_file.write_text("{ damaged")
    with FakeAgent(manager.address):
        eventually(lambda: [n.state for n in client.nodes()] == ["READY"])
        eventually(lambda: "provider unavailable" in manager.errors())
        assert [n.state for n in client.nodes()] == ["READY"]


def test_a_drained_node_is_released(manager: ManagerProcess, client: Client) -> None:
    with FakeAgent(manager.address) as agent:
        eventually(lambda: client.nodes())
        client.drain("n1", user="me")
        agent.wait_for_message("leave")
