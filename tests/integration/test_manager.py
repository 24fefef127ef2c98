"""A real manager process over real gRPC, with scripted agents."""

import socket
import sqlite3
import sys
from contextlib import closing
from pathlib import Path
from typing import Any, cast

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from tests.support.fake_agent import FakeAgent
from tests.support.manager_process import (
    ManagerProcess,
    eventually,
    profiled,
    submission,
    until_over,
)
from varuna_manager.client import Client
from varuna_manager.persistence import Database
from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import Conflict, InvalidInput, NoManager, NotFound
from varuna_runtime.spec.job import LayoutChoice
from varuna_runtime.spec.layout import Infeasible, Plan
from varuna_runtime.spec.manifest import Ending, ending_key
from varuna_runtime.spec.profile_checks import flaw
from varuna_runtime.store import open_store
from varuna_runtime.wire.v1 import agent_pb2, agent_pb2_grpc

SLEEPER = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)")


def whats(client: Client, job: str = "") -> list[str]:
    return [event.what for event in client.events(job)]


def push(address: str, *chunks: agent_pb2.LogChunk) -> None:
    with grpc.insecure_channel(address) as channel:
        cast(Any, agent_pb2_grpc).AgentLinkStub(channel).PushLogs(iter(chunks))


def test_a_job_is_profiled_planned_trained_and_succeeds(manager: ManagerProcess, client: Client) -> None:
    with FakeAgent(manager.address) as agent:
        job = client.submit(submission(manager.upload(), num_steps=5))
        last = until_over(client, job)
        assert (last.state, last.step, last.weights_sha256) == ("SUCCEEDED", 5, "ab" * 32)
        assert [s.step for s in client.steps(job)] == [0, 1, 2, 3, 4]
        assert client.steps(job)[1].loss_hex == (0.5).hex()
        assert isinstance(client.plan(job).outcome, Plan)
        assert client.plan(job).explanation is not None
        assert client.plan(job).profile is None
        profiled = client.plan(job, with_profile=True).profile
        assert profiled is not None
        assert flaw(profiled) == ""
        assert whats(client, job)[0] == "submitted"
        agent.wait_for_message("forget")
        agent.wait_for(lambda: agent.unacked == 0)


def test_the_second_job_of_a_model_needs_no_profile_run(manager: ManagerProcess, client: Client) -> None:
    with FakeAgent(manager.address) as agent:
        bundle = manager.upload()
        until_over(client, client.submit(submission(bundle)))
        until_over(client, client.submit(submission(bundle)))
        assert [m.start.kind for m in agent.all_heard("start")] == [2, 1, 1]


def test_health_says_serving(manager: ManagerProcess) -> None:
    with grpc.insecure_channel(manager.address) as channel:
        reply = health_pb2_grpc.HealthStub(channel).Check(health_pb2.HealthCheckRequest())
    assert reply.status == health_pb2.HealthCheckResponse.SERVING


def test_a_repeated_submit_gives_the_same_job_also_after_a_restart(
    manager: ManagerProcess, client: Client
) -> None:
    wanted = submission(manager.upload(), request_id="r1")
    first = client.submit(wanted)
    assert client.submit(wanted) == first
    manager.kill()
    manager.start()
    with manager.client() as again:
        assert again.submit(wanted) == first
        assert len(again.jobs()) == 1


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"layout": LayoutChoice(stages=3)}, r"layout\.stages: seen 3, wanted at most 2"),
        ({"micro_batch_size": 9}, "micro_batch_size: seen 9, wanted at most batch_size = 8"),
        ({"num_steps": 0}, "0 steps"),
        ({"secrets": ("TOKEN",)}, "missing .*TOKEN"),
    ],
)
def test_a_bad_submission_is_refused_and_leaves_nothing(
    manager: ManagerProcess, client: Client, changes: dict[str, object], message: str
) -> None:
    with pytest.raises(InvalidInput, match=message):
        client.submit(submission(manager.upload(), **changes))
    assert client.jobs() == ()


def test_a_missing_bundle_is_refused_by_name(client: Client) -> None:
    with pytest.raises(InvalidInput, match="bundles/000"):
        client.submit(submission("0" * 64))


def test_unknown_names_are_answered_with_close_ones(manager: ManagerProcess, client: Client) -> None:
    client.submit(submission(manager.upload()))
    with pytest.raises(NotFound, match="did you mean tiny"):
        client.job("tinny")
    with pytest.raises(NotFound, match="node 'n9'"):
        client.drain("n9", user="me")


def test_a_finished_job_cannot_be_cancelled(manager: ManagerProcess, client: Client) -> None:
    with FakeAgent(manager.address):
        job = client.submit(submission(manager.upload()))
        until_over(client, job)
        with pytest.raises(Conflict, match="SUCCEEDED"):
            client.cancel(job, user="me")


def test_m5_cancel_of_a_pending_job_without_a_pool_is_honoured(
    manager: ManagerProcess, client: Client
) -> None:
    job = client.submit(submission(manager.upload()))
    assert client.cancel(job, user="me") == "CANCELLED"
    manager.kill()
    manager.start()
    with manager.client() as again:
        assert again.job(job).state == "CANCELLED"


def test_m12_logs_without_follow_return_at_once_when_nothing_runs(
    manager: ManagerProcess, client: Client
) -> None:
    job = client.submit(submission(manager.upload()))
    assert list(client.logs(job)) == []


def test_logs_are_followed_in_whole_lines_until_the_job_is_over(
    manager: ManagerProcess, client: Client
) -> None:
    with FakeAgent(manager.address) as agent:
        agent.may_finish.clear()
        job = client.submit(submission(manager.upload()))
        eventually(lambda: client.job(job).state == "RUNNING")
        chunk = {"node": "n1", "job": job, "generation": 1, "rank": 0}
        push(manager.address, agent_pb2.LogChunk(**chunk, offset=0, data=b"one\ntw"))
        seen = client.logs(job, follow=True)
        assert next(seen).data == b"one\n"
        push(manager.address, agent_pb2.LogChunk(**chunk, offset=4, data=b"two\n"))
        assert next(seen).data == b"two\n"
        chunk = {**chunk, "generation": 2, "rank": -1}
        push(manager.address, agent_pb2.LogChunk(**chunk, offset=0, data=b"unfinished"))
        agent.may_finish.set()
        last = next(seen)
        assert (last.generation, last.rank, last.data) == (2, -1, b"unfinished")
        assert list(seen) == []
        assert [c.rank for c in client.logs(job, rank=-1)] == [-1]


def test_log_lines_of_no_job_of_the_node_are_dropped_and_hold_nothing_up(
    manager: ManagerProcess, client: Client
) -> None:
    with FakeAgent(manager.address) as agent, FakeAgent(manager.address, "n2"):
        agent.may_finish.clear()
        job = client.submit(submission(manager.upload()))
        eventually(lambda: client.job(job).state == "RUNNING")
        mine, other = ("n1", "n2") if client.nodes()[0].job else ("n2", "n1")
        push(
            manager.address,
            agent_pb2.LogChunk(node=mine, job="../../etc", generation=2, data=b"x"),
            agent_pb2.LogChunk(node=mine, job=job, generation=9, data=b"x"),
            agent_pb2.LogChunk(node=mine, job=job, generation=2, rank=7, data=b"x"),
            agent_pb2.LogChunk(node=other, job=job, generation=2, rank=0, data=b"x"),
            agent_pb2.LogChunk(node=mine, job=job, generation=2, rank=0, data=b"good\n"),
        )
        assert [(c.generation, c.rank, c.data) for c in client.logs(job)] == [(2, 0, b"good\n")]
        logs = manager.home.logs
        assert [str(path.relative_to(logs)) for path in logs.rglob("*.log")] == [f"{job}/g2-r0.log"]
        agent.may_finish.set()


def test_secrets_reach_the_agent_and_nothing_else(manager: ManagerProcess, client: Client) -> None:
    with FakeAgent(manager.address) as agent:
        agent.may_finish.clear()
        wanted = submission(manager.upload(), secrets=("TOKEN",), given={"TOKEN": "hunter2hunter2"})
        job = client.submit(wanted)
        start = agent.wait_for_message("start").start
        assert dict(start.secrets) == {"TOKEN": "hunter2hunter2"}
        eventually(lambda: client.job(job).state == "RUNNING")
        push(
            manager.address,
            agent_pb2.LogChunk(node="n1", job=job, generation=1, data=b"token=hunter2hunter2\n"),
        )
        assert [c.data for c in client.logs(job)] == [b"token=**************\n"]
        (kept,) = manager.home.secrets.iterdir()
        assert kept.stat().st_mode & 0o777 == 0o600
        agent.may_finish.set()
        until_over(client, job)
        eventually(lambda: not list(manager.home.secrets.iterdir()))
    manager.stop()
    everything = [p for p in manager.home.root.rglob("*") if p.is_file()]
    assert not [p for p in everything if b"hunter2hunter2" in p.read_bytes()]


def test_a_dry_run_plans_for_the_present_pool_and_leaves_nothing(
    manager: ManagerProcess, client: Client
) -> None:
    wanted = profiled(submission(manager.upload()))
    assert isinstance(client.dry_run(wanted).outcome, Infeasible)
    with FakeAgent(manager.address):
        eventually(lambda: [n.state for n in client.nodes()] == ["READY"])
        assert isinstance(client.dry_run(wanted).outcome, Plan)
        with pytest.raises(Conflict, match="no profile"):
            client.dry_run(submission(manager.upload()))
        assert client.jobs() == ()


def test_a_second_manager_on_the_same_home_is_refused_and_told_the_pid(manager: ManagerProcess) -> None:
    second = manager.spawn()
    assert second.wait(30) != 0
    assert f"already served by the manager with pid {manager.pid}" in manager.errors()


def test_a_second_manager_on_the_same_port_is_refused(manager: ManagerProcess, tmp_path: Path) -> None:
    other = tmp_path / "other"
    other.mkdir()
    second = ManagerProcess(other, port=int(manager.address.rpartition(":")[2]))
    assert second.spawn().wait(30) != 0
    assert f"cannot listen on {manager.address}" in second.errors()
    assert not second.home.journal.exists()


def test_t46_a_killed_manager_adopts_what_still_runs(manager: ManagerProcess, client: Client) -> None:
    with FakeAgent(manager.address, step_s=0.02) as agent:
        agent.may_finish.clear()
        job = client.submit(submission(manager.upload(), num_steps=40))
        eventually(lambda: client.job(job).step > 3)
        address, generation = manager.address, client.job(job).generation
        manager.kill()
        manager.start()
        assert manager.address == address
        agent.may_finish.set()
        with manager.client() as again:
            assert again.job(job).step > 3
            last = until_over(again, job)
            assert (last.state, last.generation, last.replayed_steps) == ("SUCCEEDED", generation, 0)
            assert [s.step for s in again.steps(job)] == list(range(40))
        assert [m.start.generation for m in agent.all_heard("start")] == [1, generation]
        assert {m.epoch for m in agent.heard} == {1, 2}


def test_m3_a_job_that_finished_while_the_manager_was_away_is_not_run_again(
    manager: ManagerProcess, client: Client
) -> None:
    with FakeAgent(manager.address) as agent:
        agent.may_finish.clear()
        job = client.submit(submission(manager.upload()))
        eventually(lambda: client.job(job).step == 5)
        manager.kill()
        agent.may_finish.set()
        eventually(lambda: agent.unacked > 0)
        manager.start()
        with manager.client() as again:
            assert until_over(again, job).state == "SUCCEEDED"
        assert len(agent.all_heard("start")) == 2


@pytest.mark.parametrize("is_of_this_generation", [True, False])
def test_m3_a_job_that_finished_without_manager_is_over_though_its_nodes_are_gone_too(
    manager: ManagerProcess, client: Client, is_of_this_generation: bool
) -> None:
    with FakeAgent(manager.address) as agent:
        agent.may_finish.clear()
        job = client.submit(submission(manager.upload()))
        eventually(lambda: client.job(job).step == 5)
        generation = client.job(job).generation
        manager.kill()
    ending = Ending(generation=generation - (not is_of_this_generation), step=5, weights_sha256="ab")
    open_store(manager.home.store_url).put(ending_key(job), canonical.dumps(ending))
    manager.start()
    with manager.client() as again:
        if is_of_this_generation:
            status = until_over(again, job)
            assert (status.state, status.weights_sha256) == ("SUCCEEDED", "ab")
        else:
            eventually(lambda: again.job(job).state == "PARKED")


def test_m4_fifty_queued_jobs_survive_three_kills(manager: ManagerProcess, client: Client) -> None:
    bundle = manager.upload()
    with FakeAgent(manager.address) as agent:
        agent.may_finish.clear()
        jobs = [client.submit(submission(bundle, num_steps=1)) for _ in range(50)]
        eventually(lambda: client.job(jobs[0]).state == "RUNNING")
        for _ in range(3):
            manager.kill()
            manager.start()
            with manager.client() as again:
                found = {j.job: j.state for j in again.jobs()}
                assert list(found) == jobs
                assert found[jobs[0]] == "RUNNING"
                assert {found[job] for job in jobs[1:]} == {"PENDING"}
        agent.may_finish.set()
        with manager.client() as again:
            assert {until_over(again, job).state for job in jobs} == {"SUCCEEDED"}


def test_a_stopped_manager_leaves_agents_alone_and_ends_cleanly(
    manager: ManagerProcess, client: Client
) -> None:
    with FakeAgent(manager.address) as agent:
        agent.wait_for_message("welcome")
        assert manager.stop() == 0
        with pytest.raises(NoManager):
            client.jobs()
        with closing(Database(manager.home.journal)) as database:
            kept = database.snapshot()
            assert kept is not None
            assert kept.journal_id == database.last_id()
        assert not {m.WhichOneof("body") for m in agent.heard} & {"abort", "leave", "fenced"}
        manager.start()
        agent.wait_for_message("welcome", 2)
        with manager.client() as again:
            assert "node-disconnected" not in whats(again)


def test_a_lost_address_is_replaced_by_another_with_a_warning(manager: ManagerProcess) -> None:
    host, _, port = manager.address.rpartition(":")
    manager.kill()
    with socket.create_server((host, int(port))):
        manager.start()
        assert manager.address != f"{host}:{port}"
        assert "address lost" in manager.errors()


def test_a_journal_that_cannot_be_written_ends_the_manager_with_the_reason(
    manager: ManagerProcess, client: Client
) -> None:
    connection = sqlite3.connect(manager.home.journal)
    connection.execute("DROP TABLE journal")
    connection.commit()
    connection.close()
    with FakeAgent(manager.address) as agent:
        agent.wait_for_message("welcome")
        assert manager.wait() != 0
    assert "the manager cannot go on: OperationalError" in manager.errors()
