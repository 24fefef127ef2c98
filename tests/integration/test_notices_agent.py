"""Real agents on a machine of a cloud: a fake metadata service below, a scripted manager above."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import Coroutine, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.agents import JOB, ToyJob, marked_processes
from tests.support.clouds.metadata_facts import Machine
from tests.support.clouds.metadata_server import Break, MetadataServer
from tests.support.fake_manager import FakeManager
from varuna_runtime.spec.layout import Layout
from varuna_runtime.wire.v1 import agent_pb2

ROUNDING = 1e-6  # of seconds that are added to a clock and taken off it again

NODE = "i-0abc"
ONE = Layout(stages=1, replicas=1)


@pytest.fixture
def service() -> Iterator[MetadataServer]:
    with MetadataServer(Machine(node=NODE, host="127.0.0.1")) as running:
        yield running


@contextmanager
def agent_on(
    service: MetadataServer, manager: str, home: Path, *words: str
) -> Iterator[subprocess.Popen[bytes]]:
    """`varuna agent` as a machine starts it; killed at the end if it is still there."""
    home.mkdir(parents=True)
    command = [sys.executable, "-m", "varuna_manager.cli", "agent", "--manager", manager, "--home", str(home)]
    with (home / "agent.log").open("wb") as log:
        process = subprocess.Popen(
            [*command, *words],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
            env=os.environ | {"VARUNA_IMDS_ENDPOINT": service.url},
        )
    try:
        yield process
    finally:
        if process.poll() is None:
            process.kill()
        process.wait(30)


async def ended(process: subprocess.Popen[bytes]) -> int:
    async with asyncio.timeout(60.0):
        return await asyncio.to_thread(process.wait)


def run(test: Coroutine[Any, Any, None]) -> None:
    asyncio.run(test)


def notices(manager: FakeManager) -> list[agent_pb2.NoticeReport]:
    return [m.notice for m in manager.reports if m.HasField("notice")]


def states(manager: FakeManager) -> list[str]:
    told = [m.notices.state for m in manager.reports if m.HasField("notices")]
    return [manager.sessions[0].hello.notices, *told]


async def beats(manager: FakeManager, num: int = 5) -> None:
    """Wait until the agent has been through its loops a few times."""
    until = len(manager.beats) + num
    await manager.until(lambda: len(manager.beats) >= until)


async def started(manager: FakeManager, job: ToyJob) -> None:
    """The node has a rank of the job, though no process of it need be there yet."""
    await manager.send(start=job.start(1, job.plan(ONE, (NODE,))))
    await manager.until(lambda: bool(manager.beats and manager.beats[-1].running))


def test_a_node_of_aws_joins_by_its_instance_id_and_passes_on_what_it_hears(
    service: MetadataServer, tmp_path: Path
) -> None:
    async def test() -> None:
        async with FakeManager() as manager:
            with agent_on(service, manager.address, tmp_path / "n", "--cloud", "aws"):
                await manager.until(lambda: bool(manager.sessions))
                hello = manager.sessions[0].hello
                assert (hello.node, hello.host, hello.slots) == (NODE, "127.0.0.1", 1)
                await manager.until(lambda: states(manager)[-1] == "aws")
                service.recommend()
                await manager.until(lambda: len(notices(manager)) == 1)
                service.interrupt(time.time() + 100.0)
                await manager.until(lambda: len(notices(manager)) == 2)
                service.calm()
                await manager.until(lambda: len(notices(manager)) == 3)
        hint, notice, cancelled = notices(manager)
        assert (hint.is_hint, hint.cancelled, hint.source, hint.node) == (True, False, "aws", NODE)
        assert (notice.is_hint, notice.cancelled) == (False, False)
        assert 0.0 < notice.seconds_left <= 100.0 + ROUNDING
        assert "terminate" in notice.detail
        assert cancelled.cancelled

    run(test())


def test_m24_a_service_that_never_answers_keeps_no_agent_from_joining(
    service: MetadataServer, tmp_path: Path
) -> None:
    async def test() -> None:
        service.break_(Break.NEVER, method="PUT")
        async with FakeManager() as manager:
            words = ("--cloud", "aws", "--node", "n1", "--host", "127.0.0.1")
            with agent_on(service, manager.address, tmp_path / "n", *words):
                await manager.until(lambda: bool(manager.sessions))
                await manager.until(lambda: states(manager)[-1].startswith("unavailable, because no answer"))
                assert "the hop limit has to be 2" in states(manager)[-1]
                service.mend()
                await manager.until(lambda: states(manager)[-1] == "aws")

    run(test())


def test_m26_an_event_is_acknowledged_only_when_the_manager_knows_and_the_node_is_empty(
    service: MetadataServer, tmp_path: Path
) -> None:
    job = ToyJob(tmp_path, env={"AT_IMPORT": "time.sleep(600)"})

    async def test() -> None:
        async with FakeManager(acknowledges=False) as manager:
            with agent_on(service, manager.address, tmp_path / "n", "--cloud", "azure"):
                await manager.until(lambda: bool(manager.sessions))
                await manager.until(lambda: states(manager)[-1] == "azure")
                await started(manager, job)
                event = service.announce("Preempt", 600.0)
                await manager.until(lambda: bool(notices(manager)))
                await manager.send(ack=agent_pb2.Ack(seq=max(m.seq for m in manager.reports)))
                await beats(manager)
                assert service.take_acknowledged() == [], "the job still has a process here"
                await manager.send(abort=agent_pb2.Abort(job=JOB, generation=1, reason="handed over"))
                await manager.until(lambda: (JOB, 1) in manager.gone())
                while service.take_acknowledged() != [event]:
                    await beats(manager, 1)

    run(test())


def test_a_node_joins_while_azure_is_still_switching_its_events_on(
    service: MetadataServer, tmp_path: Path
) -> None:
    async def test() -> None:
        service.enabled.clear()
        async with FakeManager() as manager:
            with agent_on(service, manager.address, tmp_path / "n", "--cloud", "azure"):
                await manager.until(lambda: bool(manager.sessions))
                assert "azure" not in states(manager)
                service.enabled.set()
                await manager.until(lambda: states(manager)[-1] == "azure")

    run(test())


def test_an_event_is_not_acknowledged_before_the_manager_knows_of_it(
    service: MetadataServer, tmp_path: Path
) -> None:
    async def test() -> None:
        async with FakeManager(acknowledges=False) as manager:
            with agent_on(service, manager.address, tmp_path / "n", "--cloud", "azure"):
                await manager.until(lambda: bool(manager.sessions))
                event = service.announce("Preempt", 600.0)
                await manager.until(lambda: bool(notices(manager)))
                await beats(manager)
                assert service.take_acknowledged() == []
                await manager.send(ack=agent_pb2.Ack(seq=manager.reports[-1].seq))
                while service.take_acknowledged() != [event]:
                    await beats(manager, 1)

    run(test())


def test_t35_sigterm_with_time_to_drain_hands_the_work_over_first(
    service: MetadataServer, tmp_path: Path
) -> None:
    job = ToyJob(tmp_path, env={"SAMPLE_S": "0.02"}, steps=2000)

    async def test() -> None:
        async with FakeManager() as manager:
            with agent_on(
                service, manager.address, tmp_path / "n", "--node", NODE, "--drain-on-term", "100s"
            ) as agent:
                await manager.until(lambda: bool(manager.sessions))
                await started(manager, job)
                await manager.until(lambda: bool(manager.of_kind("prepared")))
                endpoints = [manager.of_kind("prepared")[0].prepared.endpoint]
                await manager.send(activate=agent_pb2.Activate(job=JOB, generation=1, endpoints=endpoints))
                await manager.until(lambda: bool(manager.of_kind("active")))
                agent.send_signal(signal.SIGTERM)
                await manager.until(lambda: bool(notices(manager)))
                (notice,) = notices(manager)
                assert (notice.source, notice.is_urgent) == ("agent", True)
                assert 0.0 < notice.seconds_left <= 100.0 + ROUNDING
                await beats(manager)
                assert manager.goodbyes == [], "the job still runs here"
                await manager.send(drain=agent_pb2.Drain(job=JOB, generation=1, within_s=60.0))
                await manager.until(lambda: bool(manager.goodbyes))
                assert len(manager.of_kind("drained")) == 1
                assert await ended(agent) == 0
            assert marked_processes(manager) == ()

    run(test())


def test_t35_a_drain_that_takes_too_long_ends_with_its_time(service: MetadataServer, tmp_path: Path) -> None:
    job = ToyJob(tmp_path, env={"AT_IMPORT": "time.sleep(600)"})

    async def test() -> None:
        async with FakeManager() as manager:
            words = ("--node", NODE, "--drain-on-term", "0.5")
            with agent_on(service, manager.address, tmp_path / "n", *words) as agent:
                await manager.until(lambda: bool(manager.sessions))
                await started(manager, job)
                agent.send_signal(signal.SIGTERM)
                await manager.until(lambda: bool(manager.goodbyes))
                assert await ended(agent) == 0
            assert (JOB, 1) in manager.gone()
            assert marked_processes(manager) == ()

    run(test())


@pytest.mark.parametrize("words", [(), ("--drain-on-term", "100s")], ids=["at once", "with time to drain"])
def test_t35_sigterm_before_any_manager_or_metadata_answers(
    service: MetadataServer, tmp_path: Path, words: tuple[str, ...]
) -> None:
    async def test() -> None:
        service.break_(Break.NEVER)
        known = ("--cloud", "azure", "--node", NODE, "--host", "127.0.0.1")
        with agent_on(service, "127.0.0.1:1", tmp_path / "n", *known, *words) as agent:
            assert await asyncio.to_thread(service.asked.wait, 60.0)
            agent.send_signal(signal.SIGTERM)
            assert await ended(agent) == 0

    run(test())
