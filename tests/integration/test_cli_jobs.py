"""The commands about jobs and nodes against a real manager with scripted agents."""

import json
import signal
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest

from tests.support.cli import Shell
from tests.support.fake_agent import FakeAgent
from tests.support.manager_process import ManagerProcess, eventually, profiled, submission, until_over
from varuna_manager.cli import root
from varuna_manager.client import Client
from varuna_runtime.wire.v1 import agent_pb2, agent_pb2_grpc

Command = Callable[..., int]


@pytest.fixture
def varuna(manager: ManagerProcess, monkeypatch: pytest.MonkeyPatch) -> Command:
    monkeypatch.setenv("VARUNA_MANAGER", manager.address)
    return lambda *arguments: root.run(list(arguments))


@pytest.fixture
def finished(manager: ManagerProcess, client: Client) -> str:
    with FakeAgent(manager.address):
        job = client.submit(submission(manager.upload(), num_steps=3))
        until_over(client, job)
    return job


def test_status_shows_jobs_and_one_job(
    varuna: Command, finished: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert varuna("status") == 0
    assert finished in capsys.readouterr().out
    assert varuna("status", "tiny") == 0
    assert "ab" * 32 in capsys.readouterr().out


def test_status_as_json_has_no_secrets_and_no_nan(
    varuna: Command, finished: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert varuna("status", finished, "--json") == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["job"], shown["state"], shown["step"]) == (finished, "SUCCEEDED", 3)
    assert varuna("status", "--json") == 0
    assert [job["job"] for job in json.loads(capsys.readouterr().out)] == [finished]


def test_an_unknown_job_is_refused_with_close_names(
    varuna: Command, finished: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert varuna("status", "tinyy") == 1
    assert "did you mean tiny" in capsys.readouterr().err


def test_events_tell_what_happened_in_order(
    varuna: Command, finished: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert varuna("events", finished, "--json") == 0
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [e["what"] for e in events][:1] == ["submitted"]
    assert [e["what"] for e in events][-1:] == ["succeeded"]
    assert varuna("events") == 0
    assert f"{finished}  submitted: " in capsys.readouterr().out


def test_metrics_show_each_step_and_each_evaluation_once(
    varuna: Command, finished: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert varuna("metrics", finished, "--jsonl", "--follow") == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["kind"], line["step"]) for line in found] == [
        ("step", 1),
        ("step", 2),
        ("step", 3),
        ("evaluation", 3),
    ]
    assert (found[1]["loss"], found[1]["grad_norm"], found[1]["learning_rate"]) == (0.5, 0.5, None)
    assert found[-1]["values"] == {"loss": 0.25}
    assert varuna("metrics", finished) == 0
    shown = capsys.readouterr().out.splitlines()
    assert shown[0].startswith("step 1  loss 1.000000  grad norm 0.5  800.0 samples/s")
    assert shown[-1] == "step 3  evaluation  loss 0.25"
    assert varuna("metrics", finished, "--tensorboard", str(tmp_path / "runs")) == 0
    assert capsys.readouterr().out == ""
    assert len(list((tmp_path / "runs").glob("events.out.tfevents.*"))) == 1


def test_steps_carry_every_bit_of_the_loss(
    varuna: Command, finished: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert varuna("steps", finished, "--json") == 0
    steps = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [float.fromhex(s["loss_hex"]) for s in steps] == [1.0, 1 / 2, 1 / 3]
    assert varuna("steps", finished) == 0
    assert (1 / 3).hex() in capsys.readouterr().out


def test_plan_shows_stages_placement_and_source(
    varuna: Command, finished: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert varuna("plan", finished) == 0
    shown = capsys.readouterr().out
    assert "layout 1x1" in shown
    assert "n1:0" in shown
    assert varuna("plan", finished, "--json") == 0
    assert json.loads(capsys.readouterr().out)["plan"]["layout"] == {"stages": 1, "replicas": 1}


def test_plan_by_another_objective_is_made_anew_for_the_nodes_of_now(
    varuna: Command,
    manager: ManagerProcess,
    client: Client,
    finished: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    by_progress = ("plan", finished, "--objective", "progress")
    with FakeAgent(manager.address) as agent:
        eventually(
            lambda: [(n.incarnation, n.state) for n in client.nodes()] == [(agent.incarnation, "READY")]
        )
        assert varuna(*by_progress, "--loss-rate", "0.5", "--json") == 0
        why = json.loads(capsys.readouterr().out)["explanation"]
        assert why["objective"] == "progress"
        assert why["outlook"]["losses"] == {"per_node_s": 0.5 / 3600, "burst_weights": [1.0]}
        assert varuna(*by_progress) == 0
        assert "each node is lost once in" in capsys.readouterr().out
        assert varuna("plan", finished, "--objective", "cost") == 1
        assert "have no known price: n1" in capsys.readouterr().err


def test_m12_logs_of_a_job_that_never_ran_return_at_once_with_nothing(
    varuna: Command, manager: ManagerProcess, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    job = client.submit(submission(manager.upload()))
    assert varuna("logs", job) == 0
    assert capsys.readouterr().out == ""


def test_logs_say_whose_line_it_is(
    varuna: Command, manager: ManagerProcess, finished: str, capfdbinary: pytest.CaptureFixture[bytes]
) -> None:

    chunks = [
        agent_pb2.LogChunk(node="n1", job=finished, generation=2, rank=rank, offset=0, data=text)
        for rank, text in ((0, b"zero\none\n"), (-1, b"setup\n"))
    ]
    with grpc.insecure_channel(manager.address) as channel:
        agent_pb2_grpc.AgentLinkStub(channel).PushLogs(iter(chunks))
    assert varuna("logs", finished) == 0
    shown = capfdbinary.readouterr().out.splitlines()
    assert sorted(shown) == [b"g2 launcher | setup", b"g2 rank 0 | one", b"g2 rank 0 | zero"]
    assert varuna("logs", finished, "--rank", "0") == 0
    assert capfdbinary.readouterr().out == b"zero\none\n"
    assert varuna("logs", finished, "--generation", "1") == 0
    assert capfdbinary.readouterr().out == b""


def test_nodes_are_listed_and_drained(
    varuna: Command, manager: ManagerProcess, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeAgent(manager.address, "n1") as agent:
        eventually(lambda: len(client.nodes()) == 1)
        assert varuna("nodes", "--json") == 0
        assert json.loads(capsys.readouterr().out)[0]["device_kind"] == "cpu:test"
        assert varuna("drain", "n2") == 1
        assert "n2" in capsys.readouterr().err
        assert varuna("drain", "n1") == 0
        agent.wait_for_message("leave")


def test_cancel_ends_a_job_and_following_it_says_so_by_its_exit_code(
    varuna: Command, manager: ManagerProcess, client: Client, capsys: pytest.CaptureFixture[str]
) -> None:
    with FakeAgent(manager.address) as agent:
        agent.may_finish.clear()
        job = client.submit(submission(manager.upload(), num_steps=3))
        assert varuna("cancel", job) == 0
        assert varuna("status", job, "--watch") == 1
        assert "CANCELLED" in capsys.readouterr().out
        agent.may_finish.set()


def test_a_finished_job_is_followed_to_its_end_with_its_events(
    varuna: Command, finished: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert varuna("status", finished, "--watch") == 0
    shown = capsys.readouterr().out
    assert "submitted: " in shown
    assert "SUCCEEDED  step 3/3 (100%)" in shown


def test_following_survives_a_manager_that_is_killed_and_started_again(
    manager: ManagerProcess, client: Client, tmp_path: Path
) -> None:
    with FakeAgent(manager.address) as agent:
        agent.may_finish.clear()
        job = client.submit(submission(manager.upload(), num_steps=3))
        with following(tmp_path, job) as follower:
            assert follower.stdout is not None
            assert "submitted" in follower.stdout.readline()
            manager.kill()
            manager.start()
            agent.may_finish.set()
            out, _ = follower.communicate(timeout=60)
    assert follower.returncode == 0
    assert out.rstrip().splitlines()[-1].startswith("SUCCEEDED  step 3/3")


def test_ctrl_c_detaches_and_the_job_goes_on(manager: ManagerProcess, client: Client, tmp_path: Path) -> None:
    with FakeAgent(manager.address) as agent:
        agent.may_finish.clear()
        job = client.submit(submission(manager.upload(), num_steps=3))
        with following(tmp_path, job) as follower:
            assert follower.stdout is not None
            follower.stdout.readline()
            follower.send_signal(signal.SIGINT)
            _, err = follower.communicate(timeout=60)
        assert follower.returncode == root.INTERRUPTED
        assert f"detached; {job} goes on. Watch it again: varuna status {job} --watch" in err
        agent.may_finish.set()
        assert until_over(client, job).has_succeeded


def test_a_dry_run_leaves_no_trace(manager: ManagerProcess, client: Client) -> None:
    with FakeAgent(manager.address):
        eventually(lambda: len(client.nodes()) == 1)
        report = client.dry_run(profiled(submission("")))
        assert report.explanation is not None
        assert client.jobs() == ()


@contextmanager
def following(home: Path, job: str) -> Iterator[subprocess.Popen[str]]:
    shell = Shell(home)
    process = subprocess.Popen(
        shell.command("status", job, "--watch"),
        env={**shell.environment, "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    with process:
        try:
            yield process
        finally:
            process.kill()
