"""`varuna up` and `varuna down` with real processes: repeatable after anything was killed, nothing left."""

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.cli import Shell
from varuna_manager.cli.take_down import orphans
from varuna_manager.cloud import processes
from varuna_manager.cloud.pool_file import PoolFile, Role


@pytest.fixture
def varuna(tmp_path: Path) -> Iterator[Shell]:
    shell = Shell(tmp_path / "home")
    yield shell
    shell("down")


def kill(pid: int) -> None:
    os.kill(pid, signal.SIGKILL)


def test_up_twice_changes_nothing(varuna: Shell) -> None:
    varuna("up", "-n", "2")
    before = varuna.started()
    second = varuna("up", "-n", "2")
    assert varuna.started() == before
    assert "0 new nodes" in second.out


def test_up_replaces_a_killed_node_and_leaves_the_others_alone(varuna: Shell) -> None:
    varuna("up", "-n", "2")
    first, second = varuna.agents()
    kill(first.process.pid)
    varuna("up", "-n", "2")
    assert [agent.name for agent in varuna.agents()][1:] == [second.name, "local-3"]
    assert processes.is_alive(second.process)
    assert {node["node"] for node in varuna("nodes", "--json").json()} >= {"local-2", "local-3"}


def test_up_after_the_manager_was_killed_brings_it_back_where_the_agents_call_it(varuna: Shell) -> None:
    first = varuna("up", "-n", "1").out.split()[1]
    agents = varuna.agents()
    kill(varuna.manager().process.pid)
    assert varuna("nodes", code=3).err.startswith("varuna: no manager answers at 127.0.0.1:")
    again = varuna("up", "-n", "1").out.split()[1]
    assert again == first
    assert varuna.agents() == agents


def test_down_ends_everything_it_started_and_nothing_else(varuna: Shell) -> None:
    stranger = subprocess.Popen(["sleep", "60"], env=varuna.environment)
    try:
        varuna("up", "-n", "2")
        started = varuna.started()
        varuna("down")
        assert [s.name for s in started if processes.is_alive(s.process)] == []
        assert orphans(varuna.home) == ()
        assert stranger.poll() is None
    finally:
        stranger.kill()
        stranger.wait()
    assert not varuna.home.pool_file.exists()
    assert [p for p in varuna.root.rglob("*") if p.is_socket()] == []


def test_down_ends_what_a_killed_agent_and_a_killed_guard_left(varuna: Shell) -> None:
    """The environment tells whose child it was."""
    left = subprocess.Popen(["sleep", "60"], env={**varuna.environment, "VARUNA_INCARNATION": "gone"})
    varuna("down")
    assert left.wait() == -signal.SIGKILL


def test_down_after_everything_was_killed_still_cleans_up(varuna: Shell) -> None:
    varuna("up", "-n", "2")
    for started in varuna.started():
        kill(started.process.pid)
    varuna("down")
    assert not varuna.home.pool_file.exists()
    assert orphans(varuna.home) == ()
    assert "nothing was running" in varuna("down").out


def test_down_ends_a_stopped_node(varuna: Shell) -> None:
    varuna("up", "-n", "1")
    (agent,) = varuna.agents()
    os.kill(agent.process.pid, signal.SIGSTOP)
    varuna("down")
    assert not processes.is_alive(agent.process)


def test_a_notice_for_an_unknown_node_names_the_known_ones(varuna: Shell) -> None:
    varuna("up", "-n", "1")
    refused = varuna("notice", "local-9", "--in", "30s", code=1)
    assert refused.err == "varuna: no node local-9 in the local pool; its nodes: local-1\n"


def test_a_notice_is_seen_and_taken_back(varuna: Shell) -> None:
    varuna("up", "-n", "1")
    notice = varuna.home.node("local-1") / "notice.json"
    varuna("notice", "local-1", "--in", "10m")
    assert notice.exists()
    varuna("notice", "local-1", "--cancel")
    assert not notice.exists()
    assert varuna("notice", "local-1", code=2).err.endswith("give either --in DURATION or --cancel\n")


def test_a_second_manager_for_the_home_is_refused(varuna: Shell) -> None:
    varuna("up", "-n", "0")
    refused = varuna("manager", code=1)
    assert f"already served by the manager with pid {varuna.manager().process.pid}" in refused.err


def test_up_three_times_at_once_makes_one_manager_and_the_nodes_once(varuna: Shell) -> None:
    ups = [subprocess.Popen(varuna.command("up", "-n", "2"), env=varuna.environment) for _ in range(3)]
    assert [up.wait(120) for up in ups] == [0, 0, 0]
    assert len(varuna.agents()) == 2
    assert len(varuna("nodes", "--json").json()) == 2


def test_down_while_up_is_at_work_leaves_nothing(varuna: Shell) -> None:
    up = subprocess.Popen(varuna.command("up", "-n", "2"), env=varuna.environment, stderr=subprocess.PIPE)
    while not varuna.home.pool_file.exists():
        assert up.poll() is None
    varuna("down")
    up.communicate(timeout=120)
    varuna("down")
    assert orphans(varuna.home) == ()
    assert not varuna.home.pool_file.exists()


def test_down_ends_an_agent_that_up_had_no_time_to_record(varuna: Shell) -> None:
    varuna("up", "-n", "1")
    (agent,) = varuna.agents()
    pool = PoolFile(varuna.home.pool_file)
    with pool.locked() as recorded:
        pool.write(replace(recorded, started=tuple(s for s in recorded.started if s.role is Role.MANAGER)))
    varuna("down")
    assert not processes.is_alive(agent.process)
