import asyncio
import json
from pathlib import Path

from tests.support.agents import JOB, ToyJob, agent_process
from tests.support.fake_manager import FakeManager
from varuna_runtime.spec.layout import Layout
from varuna_runtime.wire.v1 import agent_pb2, common_pb2


async def activate(manager: FakeManager, generation: int, world_size: int) -> None:
    def prepared() -> list[agent_pb2.RankReport]:
        return [report for report in manager.of_kind("prepared") if report.generation == generation]

    await manager.until(lambda: len(prepared()) == world_size or bool(manager.of_kind("failed")))
    assert not manager.of_kind("failed"), manager.of_kind("failed")
    endpoints = [report.prepared.endpoint for report in sorted(prepared(), key=lambda p: p.rank)]
    await manager.send(activate=agent_pb2.Activate(job=JOB, generation=generation, endpoints=endpoints))


def test_two_ranks_train_to_the_end_and_their_processes_go(tmp_path: Path) -> None:
    job = ToyJob(tmp_path)

    async def scenario() -> None:
        async with FakeManager() as manager:
            with agent_process(manager.address, tmp_path / "n1"):
                await manager.until(lambda: bool(manager.sessions))
                plan = job.plan(Layout(stages=2, replicas=1), ("n1",))
                await manager.send(start=job.start(1, plan))
                await activate(manager, 1, 2)
                await manager.until(lambda: manager.gone() == [(JOB, 1)])
                assert len(manager.of_kind("finished")) == 2, manager.of_kind("failed")
        steps = [s.step for m in manager.reports if m.HasField("steps") for s in m.steps.steps]
        assert sorted(set(steps)) == list(range(6))
        hashes = [report.finished.weights_sha256 for report in manager.of_kind("finished")]
        assert sorted(map(len, hashes)) == [0, 64]
        assert [d.durable.step for d in manager.of_kind("durable")][-1] == 6

    asyncio.run(scenario())


def test_a_profile_generation_ends_with_a_profile(tmp_path: Path) -> None:
    job = ToyJob(tmp_path)

    async def scenario() -> None:
        async with FakeManager() as manager:
            with agent_process(manager.address, tmp_path / "n1"):
                await manager.until(lambda: bool(manager.sessions))
                plan = job.plan(Layout(stages=1, replicas=2), ("n1",))
                await manager.send(start=job.start(1, plan, kind=common_pb2.GenerationKind.PROFILE))
                await activate(manager, 1, 2)
                await manager.until(lambda: manager.gone() == [(JOB, 1)])
        finished = manager.of_kind("finished")
        assert len(finished) == 2, manager.of_kind("failed")
        assert any(b"forward_s" in report.finished.profile_json for report in finished)

    asyncio.run(scenario())


WATCHED = """
EVALUATION = varuna.Evaluation(
    dataset=Data(), every_steps=4, metrics=lambda output, batch: {"size": output.abs().mean()}
)

class Closed:
    def on_step(self, report):
        pass

    def close(self):
        with open(os.environ["LINES"] + ".closed", "a") as file:
            file.write("closed ")

CALLBACKS = [varuna.JsonLines(os.environ["LINES"]), Closed()]
"""
SLOW = """
def paced(output, batch):
    time.sleep(0.1 if os.path.exists(os.environ["SLOWLY"]) else 0)
    return {}

class Long(Data):
    def __len__(self):
        return 600

EVALUATION = varuna.Evaluation(dataset=Long(), every_steps=4, metrics=paced)
"""
FAILING = """
def complain(report):
    if report.step == 2:
        raise ValueError("no more of this")
CALLBACKS = [complain]
"""


def test_evaluations_are_told_by_every_rank_and_callbacks_are_called_on_one(tmp_path: Path) -> None:
    lines = tmp_path / "metrics" / "lines.jsonl"
    job = ToyJob(tmp_path, env={"AT_IMPORT": WATCHED, "LINES": str(lines)})

    async def scenario() -> None:
        async with FakeManager() as manager:
            with agent_process(manager.address, tmp_path / "n1"):
                await manager.until(lambda: bool(manager.sessions))
                await manager.send(start=job.start(1, job.plan(Layout(stages=2, replicas=1), ("n1",))))
                await activate(manager, 1, 2)
                await manager.until(lambda: manager.gone() == [(JOB, 1)])
        assert len(manager.of_kind("finished")) == 2, manager.of_kind("failed")
        told = [(report.rank, report.evaluation) for report in manager.of_kind("evaluation")]
        assert sorted((rank, done.step, done.samples) for rank, done in told) == [
            (0, 4, 32),
            (0, 6, 32),
            (1, 4, 32),
            (1, 6, 32),
        ]
        assert [figure.name for figure in told[0][1].figures] == ["loss", "size"]

    asyncio.run(scenario())
    found = [json.loads(line) for line in lines.read_text().splitlines()]
    assert [(line["kind"], line["step"]) for line in found] == [
        ("step", 1),
        ("step", 2),
        ("step", 3),
        ("step", 4),
        ("evaluation", 4),
        ("step", 5),
        ("step", 6),
        ("evaluation", 6),
    ]
    assert Path(f"{lines}.closed").read_text() == "closed "  # and not once on every rank


def test_what_a_callback_raises_fails_the_rank_as_an_error_of_the_script(tmp_path: Path) -> None:
    job = ToyJob(tmp_path, env={"AT_IMPORT": FAILING})

    async def scenario() -> None:
        async with FakeManager() as manager:
            with agent_process(manager.address, tmp_path / "n1"):
                await manager.until(lambda: bool(manager.sessions))
                await manager.send(start=job.start(1, job.plan(Layout(stages=1, replicas=1), ("n1",))))
                await activate(manager, 1, 1)
                await manager.until(lambda: manager.gone() == [(JOB, 1)])
        (report,) = manager.of_kind("failed")
        assert report.failed.cause == common_pb2.FailureCause.USER_ERROR
        assert report.failed.message == "ValueError: no more of this"
        assert "in complain" in report.failed.detail

    asyncio.run(scenario())


def test_a_drain_in_an_evaluation_is_heard_and_the_evaluation_made_again_elsewhere(tmp_path: Path) -> None:
    slowly = tmp_path / "slowly"
    slowly.touch()
    job = ToyJob(tmp_path, env={"AT_IMPORT": SLOW, "SLOWLY": str(slowly)})

    async def scenario() -> None:
        async with FakeManager() as manager:

            def steps() -> list[int]:
                return [s.step for m in manager.reports if m.HasField("steps") for s in m.steps.steps]

            with agent_process(manager.address, tmp_path / "n1"):
                await manager.until(lambda: bool(manager.sessions))
                await manager.send(start=job.start(1, job.plan(Layout(stages=2, replicas=1), ("n1",))))
                await activate(manager, 1, 2)
                await manager.until(lambda: 3 in steps())
                await manager.send(drain=agent_pb2.Drain(job=JOB, generation=1, within_s=30.0))
                await manager.until(lambda: len(manager.of_kind("drained")) == 2)
                assert {report.drained.step for report in manager.of_kind("drained")} == {4}
                assert not manager.of_kind("evaluation")
                slowly.unlink()
                plan = job.plan(Layout(stages=1, replicas=2), ("n1",))
                await manager.send(start=job.start(2, plan, resume_step=4))
                await activate(manager, 2, 2)
                await manager.until(lambda: (JOB, 2) in manager.gone())
        told = {(e.evaluation.step, e.evaluation.generation) for e in manager.of_kind("evaluation")}
        assert told == {(4, 2), (6, 2)}

    asyncio.run(scenario())
