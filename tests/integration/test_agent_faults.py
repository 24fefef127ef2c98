import asyncio
import contextlib
import os
import signal
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from subprocess import Popen

import pytest

from tests.support.agents import JOB, ToyJob, agent_process, marked_processes
from tests.support.fake_manager import FakeManager
from varuna_runtime.spec import canonical
from varuna_runtime.spec.layout import Layout
from varuna_runtime.wire.v1 import agent_pb2, common_pb2

ONE = Layout(stages=1, replicas=1)
TWO = Layout(stages=1, replicas=2)


@dataclass
class Scene:
    manager: FakeManager
    job: ToyJob
    agent: Popen[bytes]
    home: Path

    async def start(self, generation: int, layout: Layout = ONE, resume_step: int | None = None) -> None:
        """Up to the point where every rank is prepared and activated."""
        await self.ask(generation, layout, resume_step)
        await self.until_prepared(generation, layout.world_size)
        prepared = sorted(self.of(generation, "prepared"), key=lambda report: report.rank)
        endpoints = [report.prepared.endpoint for report in prepared]
        await self.manager.send(
            activate=agent_pb2.Activate(job=JOB, generation=generation, endpoints=endpoints)
        )

    async def ask(self, generation: int, layout: Layout = ONE, resume_step: int | None = None) -> None:
        plan = self.job.plan(layout, ("n1",))
        await self.manager.send(start=self.job.start(generation, plan, resume_step=resume_step))

    async def until_prepared(self, generation: int, count: int) -> None:
        await self.manager.until(lambda: len(self.of(generation, "prepared")) == count)

    async def until_active(self, generation: int, count: int) -> None:
        await self.manager.until(lambda: len(self.of(generation, "active")) == count)

    async def until_gone(self, generation: int) -> None:
        await self.manager.until(lambda: (JOB, generation) in self.manager.gone())

    def of(self, generation: int, kind: str) -> list[agent_pb2.RankReport]:
        return [report for report in self.manager.of_kind(kind) if report.generation == generation]

    def worker_pids(self) -> list[int]:
        """Children of the launcher, which is a child of the agent."""
        return [pid for pid in marked_processes(self.manager) if parent(pid) != self.agent.pid]


@asynccontextmanager
async def scene(folder: Path, **spec: object) -> AsyncIterator[Scene]:
    job = ToyJob(folder, **spec)
    home = folder / "n1"
    async with FakeManager() as manager:
        with agent_process(manager.address, home) as agent:
            await manager.until(lambda: bool(manager.sessions))
            yield Scene(manager, job, agent, home)


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


async def until(holds: Callable[[], bool], why: str, within_s: float = 10.0) -> None:
    deadline = time.monotonic() + within_s
    while not holds():
        assert time.monotonic() < deadline, why
        await asyncio.sleep(0.02)


async def until_none_marked(manager: FakeManager) -> None:
    await until(lambda: not marked_processes(manager), "processes are left behind")


def entries(folder: Path) -> list[Path]:
    return list(folder.iterdir())


async def until_empty(folder: Path, within_s: float = 5.0) -> None:
    deadline = time.monotonic() + within_s
    while found := entries(folder):
        assert time.monotonic() < deadline, f"left behind: {found}"
        await asyncio.sleep(0.02)


SLOW = {"SAMPLE_S": "0.05"}
GRANDCHILD = "subprocess.Popen(['sleep', '600'], start_new_session=True) if index == 0 else None"


def test_t37_sigkill_of_the_agent_leaves_no_process_and_no_socket(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path, env=SLOW | {"IN_SAMPLE": GRANDCHILD}) as s:
            bystander = await asyncio.create_subprocess_exec("sleep", "600")
            await s.start(1, TWO)
            await s.until_active(1, 2)
            await s.manager.until(lambda: len(marked_processes(s.manager)) >= 4)
            s.agent.send_signal(signal.SIGKILL)
            s.agent.wait()
            await until_none_marked(s.manager)
            await until_empty(s.home / "run")
            assert bystander.returncode is None, "an innocent was killed"
            bystander.kill()
            await bystander.wait()

    asyncio.run(run())


# Another session, no environment, and its parent is gone at once: nothing but its ancestry tells whose it is.
ESCAPE = (
    "(os.environ.get('ESCAPED') or subprocess.run(['sh', '-c', f'env -i setsid sleep 600.{os.getpid()} &']), "
    "os.environ.update(ESCAPED='1'))"
)


@pytest.mark.parametrize("when", ["AT_IMPORT", "IN_SAMPLE"])
@pytest.mark.parametrize("victim", ["agent", "launcher"])
def test_t37_a_process_that_shed_session_and_environment_ends_with_agent_and_launcher(
    tmp_path: Path, victim: str, when: str
) -> None:
    async def run() -> None:
        async with scene(tmp_path, env={"SAMPLE_S": "0.2", when: ESCAPE}) as s:
            await s.start(1)
            await s.until_active(1, 1)
            (launcher,) = (pid for pid in marked_processes(s.manager) if parent(pid) == s.agent.pid)
            (worker,) = s.worker_pids()
            starter = launcher if when == "AT_IMPORT" else worker
            await until(lambda: bool(escaped(starter)), "the script's process never came")
            await asyncio.sleep(2.0)  # it is remembered a moment after it was born
            os.kill(launcher if victim == "launcher" else s.agent.pid, signal.SIGKILL)
            try:
                await until(lambda: not escaped(starter), "it escaped")
            finally:
                for pid in escaped(starter):
                    os.kill(pid, signal.SIGKILL)

    asyncio.run(run())


def escaped(starter: int) -> list[int]:
    """The processes that a worker or launcher let loose."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            if f"600.{starter}".encode() in entry.read_bytes().split(b"\0"):
                found.append(int(entry.parent.name))
    return found


def test_t3_a_worker_that_dies_is_reported_and_its_peer_says_peer_lost(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path, env=SLOW) as s:
            await s.start(1, TWO)
            await s.until_active(1, 2)
            os.kill(s.worker_pids()[0], signal.SIGKILL)
            await s.until_gone(1)
            causes = sorted(report.failed.cause for report in s.of(1, "failed"))
            assert causes == [common_pb2.FailureCause.WORKER_CRASH, common_pb2.FailureCause.PEER_LOST]
            crash = next(
                r for r in s.of(1, "failed") if r.failed.cause == common_pb2.FailureCause.WORKER_CRASH
            )
            assert crash.failed.signal == signal.SIGKILL

    asyncio.run(run())


def test_t26_a_kill_in_the_middle_of_the_next_start_is_survived(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path, env=SLOW) as s:
            await s.start(1)
            await s.until_active(1, 1)
            os.kill(s.worker_pids()[0], signal.SIGKILL)
            await s.until_gone(1)
            await s.ask(2)
            await s.until_prepared(2, 1)
            os.kill(s.worker_pids()[0], signal.SIGKILL)
            await s.until_gone(2)
            await s.start(3)
            await s.until_gone(3)
            assert len(s.of(3, "finished")) == 1
            assert s.agent.poll() is None

    asyncio.run(run())


def test_t1_a_frozen_worker_is_a_hang_and_goes(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path, env=SLOW) as s:
            await s.start(1)
            await s.until_active(1, 1)
            os.kill(s.worker_pids()[0], signal.SIGSTOP)
            await s.until_gone(1)
            (report,) = s.of(1, "failed")
            assert report.failed.cause == common_pb2.FailureCause.HANG

    asyncio.run(run())


# A forward that may be called in several ways: where the model is cut, samples are looked at.
OPEN = """
class First(nn.Linear):
    def forward(self, value, scale=None):
        return nn.functional.linear(value, self.weight, self.bias)

def model():
    return nn.Sequential(First(4, 8), nn.Tanh(), nn.Dropout(0.1), nn.Linear(8, 1))
"""


def test_a_step_beyond_the_hang_timeout_is_a_hang(tmp_path: Path) -> None:
    async def run() -> None:
        stuck = {"IN_SAMPLE": "time.sleep(600)"}
        async with scene(tmp_path, env=stuck, hang_timeout_s=1.0) as s:
            await s.start(1)
            await s.until_gone(1)
            (report,) = s.of(1, "failed")
            assert report.failed.cause == common_pb2.FailureCause.HANG
            assert "hang_timeout_s" in report.failed.message

    asyncio.run(run())


def test_samples_that_hang_where_the_model_is_cut_are_a_hang(tmp_path: Path) -> None:
    async def run() -> None:
        stuck = {"IN_SAMPLE": "time.sleep(600)", "AT_IMPORT": OPEN}
        async with scene(tmp_path, env=stuck, hang_timeout_s=1.0) as s:
            await s.ask(1)
            await s.manager.until(lambda: bool(s.of(1, "failed")))
            (report,) = s.of(1, "failed")
            assert report.failed.cause == common_pb2.FailureCause.HANG
            assert "first samples of the data set took more than 1 s" in report.failed.message

    asyncio.run(run())


def test_drain_stops_at_a_durable_step_and_the_next_generation_goes_on_from_it(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path, env=SLOW) as s:
            await s.start(1, TWO)
            await s.until_active(1, 2)
            await s.manager.send(drain=agent_pb2.Drain(job=JOB, generation=1, within_s=30.0))
            await s.until_gone(1)
            steps = {report.drained.step for report in s.of(1, "drained")}
            assert len(steps) == 1
            (step,) = steps
            assert 0 < step < 6
            await s.start(2, Layout(stages=2, replicas=1), resume_step=step)
            await s.until_gone(2)
            assert {report.prepared.resume_step for report in s.of(2, "prepared")} == {step}
            assert len(s.of(2, "finished")) == 2

    asyncio.run(run())


def test_t9_a_lost_checkpoint_never_becomes_initial_weights(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path) as s:
            await s.ask(1, resume_step=4)
            await s.until_gone(1)
            (report,) = s.of(1, "failed")
            assert report.failed.cause == common_pb2.FailureCause.START_FAILED
            assert "initial weights" in report.failed.message

    asyncio.run(run())


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("raise ValueError('boom')", "boom"),
        ("sys.exit(3)", "sys.exit"),
        ("os._exit(0)", "exit code 0"),
        ("import threading; threading.Thread(target=time.sleep, args=(9,), name='mine').start()", "mine"),
    ],
)
def test_a_script_that_fails_before_train_fails_the_start(tmp_path: Path, code: str, words: str) -> None:
    async def run() -> None:
        async with scene(tmp_path) as s:
            s.job.spec = s.job.spec.model_copy(update={"env": {"AT_IMPORT": code}})
            await s.ask(1)
            await s.until_gone(1)
            (report,) = s.of(1, "failed")
            assert words in report.failed.message
            await s.manager.until(lambda: b"script begins" in s.manager.logs.get((JOB, 1, -1), b""))

    asyncio.run(run())


def test_an_exception_in_the_data_set_is_a_user_error_with_its_traceback(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path, env={"IN_SAMPLE": "raise KeyError('no such row')"}) as s:
            await s.start(1)
            await s.until_gone(1)
            (report,) = s.of(1, "failed")
            assert report.failed.cause == common_pb2.FailureCause.USER_ERROR
            assert "no such row" in report.failed.message
            assert "__getitem__" in report.failed.detail

    asyncio.run(run())


def test_an_exception_on_one_rank_is_what_every_rank_reports(tmp_path: Path) -> None:
    failing = "if os.environ.get('VARUNA_RANK') == '1': raise KeyError('no such row')"

    async def run() -> None:
        async with scene(tmp_path, env={"IN_SAMPLE": failing}) as s:
            await s.start(1, TWO)
            await s.until_gone(1)
            told = {report.rank: report.failed for report in s.of(1, "failed")}
            assert {failed.cause for failed in told.values()} == {common_pb2.FailureCause.USER_ERROR}
            assert {failed.message for failed in told.values()} == {"KeyError: 'no such row'"}
            assert all("__getitem__" in failed.detail for failed in told.values())
            peers = {r: f.peer_rank if f.HasField("peer_rank") else None for r, f in told.items()}
            assert peers == {0: 1, 1: None}

    asyncio.run(run())


@pytest.mark.parametrize("model", [{}, {"AT_IMPORT": OPEN}])
def test_abort_ends_every_process_of_the_generation_grandchildren_too(
    tmp_path: Path, model: dict[str, str]
) -> None:
    async def run() -> None:
        async with scene(tmp_path, env=SLOW | {"IN_SAMPLE": GRANDCHILD} | model) as s:
            await s.start(1)
            await s.until_active(1, 1)
            await s.manager.until(lambda: len(marked_processes(s.manager)) >= 3)
            await s.manager.send(abort=agent_pb2.Abort(job=JOB, generation=1))
            await s.until_gone(1)
            assert len(marked_processes(s.manager)) == 1, "only the launcher stays"
            await s.manager.send(forget=agent_pb2.Forget(job=JOB))
            await until_none_marked(s.manager)

    asyncio.run(run())


def test_nobody_listens_any_more_to_workers_that_ended_with_their_launcher(tmp_path: Path) -> None:
    """Else it would take the words of the next worker that opens its socket there."""

    async def run() -> None:
        async with scene(tmp_path, env=SLOW) as s:
            await s.start(1)
            await s.until_active(1, 1)
            (first,) = sockets_below(s.home)
            (launcher,) = (pid for pid in marked_processes(s.manager) if parent(pid) == s.agent.pid)
            os.kill(launcher, signal.SIGKILL)
            await s.until_gone(1)
            await s.manager.until(lambda: not sockets_below(s.home))
            await s.start(2)
            await s.until_active(2, 1)
            assert sockets_below(s.home) not in ([], [first])

    asyncio.run(run())


def sockets_below(home: Path) -> list[Path]:
    return sorted(path for path in home.rglob("*.sock") if path.is_socket())


FORK = "pid = os.fork(); os._exit(0) if pid == 0 else os.waitpid(pid, 0)"
THREADED = "torch.randn(300, 300) @ torch.randn(300, 300)"


@pytest.mark.parametrize(("code", "threads"), [(FORK, 1), (THREADED, 2)])
def test_t38_a_data_set_may_fork_and_use_more_threads_than_its_launcher(
    tmp_path: Path, code: str, threads: int
) -> None:
    async def run() -> None:
        async with scene(tmp_path, env={"IN_SAMPLE": code}, threads_per_worker=threads) as s:
            await s.start(1, TWO)
            await s.until_gone(1)
            assert len(s.of(1, "finished")) == 2, s.of(1, "failed")

    asyncio.run(run())


def test_t37_sigkill_of_the_launcher_ends_its_ranks_and_the_next_start_has_a_new_one(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path, env=SLOW | {"IN_SAMPLE": GRANDCHILD}) as s:
            await s.start(1, TWO)
            await s.until_active(1, 2)
            (launcher,) = (pid for pid in marked_processes(s.manager) if parent(pid) == s.agent.pid)
            os.kill(launcher, signal.SIGKILL)
            await s.until_gone(1)
            assert marked_processes(s.manager) == ()
            crashes = {report.failed.cause for report in s.of(1, "failed")}
            assert common_pb2.FailureCause.WORKER_CRASH in crashes
            await s.ask(2)
            await s.until_prepared(2, 1)

    asyncio.run(run())


def test_a_failing_setup_command_is_a_user_error_with_its_output(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path, setup="echo no such wheel; exit 3") as s:
            await s.ask(1)
            await s.until_gone(1)
            (report,) = s.of(1, "failed")
            assert report.failed.cause == common_pb2.FailureCause.USER_ERROR
            assert "exit code 3" in report.failed.message
            assert "no such wheel" in report.failed.detail

    asyncio.run(run())


def test_each_setup_command_runs_once_on_a_node_also_when_jobs_share_a_bundle(tmp_path: Path) -> None:
    ran = tmp_path / "ran"

    async def run() -> None:
        async with scene(tmp_path / "scene", setup=f"echo a >> {ran}") as s:
            for generation, (job, word) in enumerate((("one", "a"), ("two", "b"), ("three", "a")), 1):
                start = s.job.start(generation, s.job.plan(ONE, ("n1",)))
                start.job = job
                spec = s.job.spec.model_copy(update={"setup": f"echo {word} >> {ran}"})
                start.job_json = canonical.dumps(spec)
                await s.manager.send(start=start)
                await s.until_prepared(generation, 1)
            assert ran.read_text().split() == ["a", "b"]

    asyncio.run(run())


def test_a_missing_bundle_fails_the_start(tmp_path: Path) -> None:
    async def run() -> None:
        async with scene(tmp_path) as s:
            plan = s.job.plan(ONE, ("n1",))
            await s.manager.send(start=s.job.start(1, plan, bundle="0" * 64))
            await s.until_gone(1)
            (report,) = s.of(1, "failed")
            assert report.failed.cause == common_pb2.FailureCause.START_FAILED

    asyncio.run(run())
