import asyncio
import json
import os
import signal
import socket
import time
from pathlib import Path

from tests.support.agents import JOB, ToyJob, agent_process, marked_processes
from tests.support.fake_manager import FakeManager
from varuna_runtime.spec.layout import Layout
from varuna_runtime.wire.v1 import agent_pb2

ONE = Layout(stages=1, replicas=1)


async def until_ended(process: object, within_s: float = 15.0) -> int:
    async with asyncio.timeout(within_s):
        return await asyncio.to_thread(process.wait)  # type: ignore[attr-defined]


async def until_importing(manager: FakeManager, job: ToyJob) -> None:
    """The launcher runs and stays in the script's import."""
    await manager.send(start=job.start(1, job.plan(ONE, ("n1",))))
    await manager.until(lambda: b"script begins" in manager.logs.get((JOB, 1, -1), b""))


def test_hello_says_what_the_node_is(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeManager() as manager:
            with agent_process(manager.address, tmp_path / "n1") as agent:
                await manager.until(lambda: len(manager.beats) >= 2)
                hello = manager.sessions[0].hello
                assert (hello.node, hello.slots, hello.pid) == ("n1", 4, agent.pid)
                assert hello.device_kind.startswith(("cpu:", "cuda:"))
                assert hello.memory_bytes > 0
                assert hello.notices == "file"

    asyncio.run(run())


def test_t35_sigterm_during_import_says_goodbye_and_leaves_nothing(tmp_path: Path) -> None:
    job = ToyJob(tmp_path, env={"AT_IMPORT": "time.sleep(600)"})

    async def run() -> None:
        async with FakeManager() as manager:
            with agent_process(manager.address, tmp_path / "n1") as agent:
                await manager.until(lambda: bool(manager.sessions))
                await until_importing(manager, job)
                agent.send_signal(signal.SIGTERM)
                await manager.until(lambda: bool(manager.goodbyes))
                assert await until_ended(agent) == 0
            assert (JOB, 1) in manager.gone()
            assert marked_processes(manager) == ()
            assert list((tmp_path / "n1" / "run").iterdir()) == []

    asyncio.run(run())


def test_a_second_agent_of_the_same_folder_ends_with_a_word_and_disturbs_nobody(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeManager() as manager:
            with agent_process(manager.address, tmp_path / "n1") as agent:
                await manager.until(lambda: bool(manager.sessions))
                with agent_process(manager.address, tmp_path / "n1") as second:
                    assert await until_ended(second) == 1
                assert f"belongs to the agent with pid {agent.pid}" in (tmp_path / "n1/agent.log").read_text()
                assert len(manager.sessions) == 1
                agent.kill()
                await asyncio.to_thread(agent.wait)
            with agent_process(manager.address, tmp_path / "n1"):
                await manager.until(lambda: len(manager.sessions) == 2)

    asyncio.run(run())


def test_leave_ends_the_agent(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeManager() as manager:
            with agent_process(manager.address, tmp_path / "n1") as agent:
                await manager.until(lambda: bool(manager.sessions))
                await manager.send(leave=agent_pb2.Leave(reason="drained"))
                await manager.until(lambda: manager.goodbyes == ["drained"])
                assert await until_ended(agent) == 0

    asyncio.run(run())


def test_a_fenced_agent_ends_its_processes_and_comes_back_as_another_incarnation(tmp_path: Path) -> None:
    job = ToyJob(tmp_path, env={"AT_IMPORT": "time.sleep(600)"})

    async def run() -> None:
        async with FakeManager() as manager:
            with agent_process(manager.address, tmp_path / "n1"):
                await manager.until(lambda: bool(manager.sessions))
                await until_importing(manager, job)
                await manager.send(fenced=agent_pb2.Fenced(reason="declared lost"))
                await manager.until(lambda: len(manager.sessions) == 2)
                first, second = (session.hello for session in manager.sessions)
                assert first.incarnation != second.incarnation
                assert first.pid == second.pid
                assert list(second.running) == []
                assert marked_processes(manager, 0) == ()

    asyncio.run(run())


def test_workers_and_reports_survive_a_manager_outage(tmp_path: Path) -> None:
    job = ToyJob(tmp_path, env={"SAMPLE_S": "0.02"})

    async def run() -> None:
        async with FakeManager(acknowledges=False) as manager:
            with agent_process(manager.address, tmp_path / "n1"):
                await manager.until(lambda: bool(manager.sessions))
                await manager.send(start=job.start(1, job.plan(ONE, ("n1",))))
                await manager.until(lambda: bool(manager.of_kind("prepared")))
                endpoints = [manager.of_kind("prepared")[0].prepared.endpoint]
                await manager.send(activate=agent_pb2.Activate(job=JOB, generation=1, endpoints=endpoints))
                await manager.until(lambda: bool(manager.of_kind("active")))
                seen = [message.seq for message in manager.reports]
                await manager.stop()
                manager.reports.clear()
                manager.epoch, manager.acknowledges = 2, True
                await manager.start()
                await manager.until(lambda: (JOB, 1) in manager.gone())
                again = [message.seq for message in manager.reports]
                assert again == list(range(1, len(again) + 1)), "all of them, in order, from the first"
                assert again[: len(seen)] == seen
                assert len(manager.of_kind("finished")) == 1
                assert manager.sessions[-1].hello.incarnation == manager.sessions[0].hello.incarnation

    asyncio.run(run())


def test_commands_of_an_older_manager_are_refused(tmp_path: Path) -> None:
    async def run() -> None:
        async with FakeManager(epoch=5) as manager:
            with agent_process(manager.address, tmp_path / "n1") as agent:
                await manager.until(lambda: bool(manager.sessions))
                manager.epoch = 4
                await manager.send(leave=agent_pb2.Leave(reason="from the past"))
                manager.epoch = 5
                await manager.until(lambda: len(manager.sessions) == 2)
                assert agent.poll() is None
                assert manager.goodbyes == []

    asyncio.run(run())


def test_workers_end_when_the_manager_stays_away_too_long(tmp_path: Path) -> None:
    job = ToyJob(tmp_path, env={"AT_IMPORT": "time.sleep(600)"})

    async def run() -> None:
        async with FakeManager() as manager:
            manager.welcome.stop_on_disconnect_after_s = 0.5
            with agent_process(manager.address, tmp_path / "n1"):
                await manager.until(lambda: bool(manager.sessions))
                await until_importing(manager, job)
                await manager.stop()
                deadline = time.monotonic() + 20.0
                while marked_processes(manager):
                    assert time.monotonic() < deadline
                    await asyncio.sleep(0.05)
                await manager.start()
                await manager.until(lambda: (JOB, 1) in manager.gone())

    asyncio.run(run())


def test_a_notice_is_reported_can_be_cancelled_and_ends_the_node_at_its_deadline(tmp_path: Path) -> None:
    home = tmp_path / "n1"
    notice = home / "notice.json"

    def write(text: str) -> None:
        (home / "new").write_text(text)
        (home / "new").rename(notice)

    async def run() -> None:
        async with FakeManager() as manager:

            def told() -> list[agent_pb2.NoticeReport]:
                return [m.notice for m in manager.reports if m.HasField("notice")]

            with agent_process(manager.address, home) as agent:
                await manager.until(lambda: bool(manager.sessions))
                write("not json at all")
                write(json.dumps({"deadline_unix": time.time() + 60}))
                await manager.until(lambda: len(told()) == 1)
                assert 50 < told()[0].seconds_left <= 60
                notice.unlink()
                await manager.until(lambda: len(told()) == 2)
                assert told()[1].cancelled
                write(json.dumps({"deadline_unix": time.time() + 0.5}))
                await manager.until(lambda: len(told()) == 3)
                assert await until_ended(agent) == -signal.SIGKILL
            assert manager.goodbyes == []

    asyncio.run(run())


def test_a_killed_guard_is_replaced(tmp_path: Path) -> None:
    def guards(agent: int) -> list[int]:
        children = Path(f"/proc/{agent}/task/{agent}/children").read_text().split()
        return [int(p) for p in children if b"guard.py" in Path(f"/proc/{p}/cmdline").read_bytes()]

    async def run() -> None:
        async with FakeManager() as manager:
            with agent_process(manager.address, tmp_path / "n1") as agent:
                await manager.until(lambda: bool(manager.sessions))
                (first,) = guards(agent.pid)
                os.kill(first, signal.SIGKILL)
                await manager.until(lambda: guards(agent.pid) not in ([], [first]))

    asyncio.run(run())


def test_t38_fifty_starts_and_ends_while_calls_run(tmp_path: Path) -> None:
    job = ToyJob(tmp_path)

    async def run() -> None:
        async with FakeManager() as manager:
            with agent_process(manager.address, tmp_path / "n1"):
                await manager.until(lambda: bool(manager.sessions))
                plan = job.plan(Layout(stages=1, replicas=2), ("n1",))
                for generation in range(1, 26):
                    await manager.send(start=job.start(generation, plan))
                    await manager.until(
                        lambda g=generation: (
                            len([r for r in manager.of_kind("prepared") if r.generation == g]) == 2
                        )
                    )
                await manager.send(abort=agent_pb2.Abort(job=JOB, generation=25))
                await manager.until(lambda: (JOB, 25) in manager.gone())
                assert manager.gone() == [(JOB, g) for g in range(1, 26)]
                assert not manager.of_kind("failed")
                assert len(marked_processes(manager)) == 1

    asyncio.run(run())


def test_t5_a_port_is_bound_by_the_rank_that_reports_it(tmp_path: Path) -> None:
    job = ToyJob(tmp_path)

    async def run() -> None:
        async with FakeManager() as manager:
            with agent_process(manager.address, tmp_path / "n1"):
                await manager.until(lambda: bool(manager.sessions))
                plan = job.plan(Layout(stages=1, replicas=2), ("n1",))
                await manager.send(start=job.start(1, plan))
                await manager.until(lambda: len(manager.of_kind("prepared")) == 2)
                endpoints = {r.rank: r.prepared.endpoint for r in manager.of_kind("prepared")}
                assert endpoints[0].port != endpoints[1].port
                for endpoint in endpoints.values():
                    socket.create_connection(("127.0.0.1", endpoint.port), timeout=5).close()

    asyncio.run(run())


def warm_of(job: ToyJob) -> agent_pb2.Warm:
    start = job.start(1, job.plan(ONE, ("n1",)))
    return agent_pb2.Warm(
        job=JOB, job_json=start.job_json, bundle=start.bundle, bundle_store_url=start.bundle_store_url
    )


def warm_reports(manager: FakeManager) -> list[tuple[bool, str]]:
    return [(m.warm.ok, m.warm.reason) for m in manager.reports if m.HasField("warm")]


def test_a_warm_node_starts_its_ranks_without_running_the_script_again(tmp_path: Path) -> None:
    job = ToyJob(tmp_path)

    async def run() -> None:
        async with FakeManager() as manager:
            with agent_process(manager.address, tmp_path / "n1"):
                await manager.until(lambda: bool(manager.sessions))
                await manager.send(warm=warm_of(job))
                await manager.until(lambda: warm_reports(manager) == [(True, "")])
                assert manager.beats[-1].running == []
                await manager.send(start=job.start(1, job.plan(ONE, ("n1",))))
                await manager.until(lambda: bool(manager.of_kind("prepared")))
                await manager.send(forget=agent_pb2.Forget(job=JOB))
                await manager.until(lambda: (JOB, 1) in manager.gone())
                await manager.until(lambda: manager.logs.get((JOB, 0, -1)) == b"script begins\n")
                assert (JOB, 1, -1) not in manager.logs

    asyncio.run(run())


def test_a_node_that_cannot_warm_up_says_why_and_still_starts_when_told(tmp_path: Path) -> None:
    job = ToyJob(tmp_path, env={"AT_IMPORT": "raise ImportError('no module named data')"})

    async def run() -> None:
        async with FakeManager() as manager:
            with agent_process(manager.address, tmp_path / "n1"):
                await manager.until(lambda: bool(manager.sessions))
                await manager.send(warm=warm_of(job))
                await manager.until(lambda: len(warm_reports(manager)) == 1)
                assert warm_reports(manager) == [(False, "ImportError: no module named data")]
                await manager.send(start=job.start(1, job.plan(ONE, ("n1",))))
                await manager.until(lambda: bool(manager.of_kind("failed")))
                (failed,) = manager.of_kind("failed")
                assert "no module named data" in failed.failed.message
                assert len(warm_reports(manager)) == 1

    asyncio.run(run())
