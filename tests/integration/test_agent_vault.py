"""The vault of a real agent: who it outlives, and whom it follows."""

import asyncio
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.agents import JOB, ToyJob, agent_process, marked_processes
from tests.support.fake_manager import FakeManager
from tests.support.vaults import SECRET, a_copy, a_record, until
from varuna_runtime.agent import guard
from varuna_runtime.spec.copies import Vault
from varuna_runtime.spec.errors import VarunaError, VaultLost
from varuna_runtime.spec.layout import Layout
from varuna_runtime.vault.client import RemoteVault
from varuna_runtime.wire.v1 import agent_pb2

ONE = Layout(stages=1, replicas=1)
SLEEPS = {"AT_IMPORT": "time.sleep(600)"}
COPY = a_copy(job=JOB, num_bytes=1_500_000)


def vault_of(agent_pid: int) -> tuple[int, ...]:
    return guard.marked(f"{guard.SPARED}={agent_pid}")


def calling(manager: FakeManager) -> RemoteVault:
    address = Vault(node="n1", host="127.0.0.1", port=manager.sessions[0].hello.vault_port)
    return RemoteVault(address, job=JOB, secret=SECRET, timeout_s=10.0)


def inventory(manager: FakeManager) -> object:
    """What is there; None while nobody answers."""
    try:
        with calling(manager) as vault:
            return vault.inventory()
    except VarunaError:
        return None


async def eventually(holds: Callable[[], bool]) -> None:
    await asyncio.to_thread(until, holds)


async def started(manager: FakeManager, job: ToyJob) -> None:
    """The job's launcher is in the script's import, and the vault serves the job."""
    await manager.until(lambda: bool(manager.sessions))
    start = job.start(1, job.plan(ONE, ("n1",)))
    start.copies_secret = SECRET
    await manager.send(start=start)
    await manager.until(lambda: b"script begins" in manager.logs.get((JOB, 1, -1), b""))
    await eventually(lambda: inventory(manager) == ())


def keep(manager: FakeManager) -> None:
    with calling(manager) as vault:
        vault.store(a_record(COPY), memoryview(bytes(COPY.num_bytes)))


def test_copies_outlive_processes_and_incarnations_and_end_when_retired(tmp_path: Path) -> None:
    job = ToyJob(tmp_path, env=SLEEPS)

    async def run() -> None:
        async with FakeManager() as manager:
            with agent_process(manager.address, tmp_path / "n1"):
                await started(manager, job)
                await asyncio.to_thread(keep, manager)
                await manager.send(fenced=agent_pb2.Fenced(reason="declared lost"))
                await manager.until(lambda: len(manager.sessions) == 2)
                assert marked_processes(manager, 0) == ()
                first, second = (session.hello for session in manager.sessions)
                assert first.vault_port == second.vault_port > 0
                assert await asyncio.to_thread(inventory, manager) == (COPY,)
                await manager.send(retire=agent_pb2.Retire(job=JOB, generation=2))
                await eventually(lambda: inventory(manager) == ())
                await manager.send(forget=agent_pb2.Forget(job=JOB))
                await eventually(lambda: inventory(manager) is None)

    asyncio.run(run())


def test_a_vault_that_dies_is_followed_by_an_empty_one_at_the_same_place(tmp_path: Path) -> None:
    job = ToyJob(tmp_path, env=SLEEPS)

    async def run() -> None:
        async with FakeManager() as manager:
            with agent_process(manager.address, tmp_path / "n1") as agent:
                await started(manager, job)
                await asyncio.to_thread(keep, manager)
                (old,) = vault_of(agent.pid)
                os.kill(old, signal.SIGKILL)
                await eventually(lambda: vault_of(agent.pid) not in ((), (old,)))
                await eventually(lambda: inventory(manager) == ())

    asyncio.run(run())


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_vault_ends_with_its_agent(tmp_path: Path, how: signal.Signals) -> None:
    job = ToyJob(tmp_path, env=SLEEPS)

    async def run() -> None:
        async with FakeManager() as manager:
            with agent_process(manager.address, tmp_path / "n1") as agent:
                await started(manager, job)
                await asyncio.to_thread(keep, manager)
                assert len(vault_of(agent.pid)) == 1
                agent.send_signal(how)
                await asyncio.to_thread(agent.wait)
                await eventually(lambda: vault_of(agent.pid) == ())
                await eventually(lambda: marked_processes(manager) == ())
            with pytest.raises(VaultLost):
                calling(manager)

    asyncio.run(run())


def test_a_node_that_wants_to_go_stays_while_it_holds_copies(tmp_path: Path) -> None:
    job = ToyJob(tmp_path, env=SLEEPS)

    async def run() -> None:
        async with FakeManager() as manager:
            with agent_process(
                manager.address, tmp_path / "n1", options=("--drain-on-term-s", "90")
            ) as agent:
                await started(manager, job)
                await asyncio.to_thread(keep, manager)
                agent.send_signal(signal.SIGTERM)
                await manager.send(abort=agent_pb2.Abort(job=JOB, generation=1, reason="moved"))
                await manager.until(lambda: (JOB, 1) in manager.gone())
                seen = len(manager.beats)
                await manager.until(lambda: len(manager.beats) > seen + 3)
                assert manager.goodbyes == []
                assert await asyncio.to_thread(inventory, manager) == (COPY,)
                await manager.send(retire=agent_pb2.Retire(job=JOB, generation=2))
                await manager.until(lambda: bool(manager.goodbyes))

    asyncio.run(run())


def test_an_agent_may_be_told_to_keep_no_copies(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeManager() as manager:
            with agent_process(manager.address, tmp_path / "n1", options=("--copies-bytes", "0")) as agent:
                await manager.until(lambda: len(manager.beats) >= 2)
                assert manager.sessions[0].hello.vault_port == 0
                assert vault_of(agent.pid) == ()

    asyncio.run(run())
