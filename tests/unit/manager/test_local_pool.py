"""What the local pool records is what it ends, and nothing else."""

import ast
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from varuna_manager.clock import wall_s
from varuna_manager.cloud import processes
from varuna_manager.cloud.local import LocalProvider
from varuna_manager.cloud.local_machines import (
    AgentLaunch,
    LocalMachines,
    agent_command,
    copies_share,
    fair_share,
)
from varuna_manager.cloud.pool_file import PoolFile
from varuna_manager.cloud.provider import InstancePhase, ProviderError
from varuna_manager.home import Home
from varuna_runtime.spec.errors import InvalidInput

SLEEPER = (sys.executable, "-I", "-S", "-c", "import time; time.sleep(60)")
LAUNCH = AgentLaunch(manager="127.0.0.1:1")


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


@pytest.fixture
def pool(home: Home) -> Iterator[LocalMachines]:
    local = LocalMachines(home, command=lambda *_: SLEEPER)
    yield local
    local.signal_all(signal.SIGKILL)


@pytest.fixture
def innocent() -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(SLEEPER)
    yield process
    process.kill()
    process.wait()


@pytest.mark.parametrize("change", [{"start_ticks": 1}, {"boot_id": "another"}])
def test_a_reused_pid_is_neither_alive_nor_killed(
    home: Home, pool: LocalMachines, innocent: subprocess.Popen[bytes], change: dict[str, object]
) -> None:
    (node,) = pool.add(LAUNCH)
    pool_file = PoolFile(home.pool_file)
    recorded = pool_file.read()
    real = processes.identify(innocent.pid)
    assert real is not None
    mistaken = replace(recorded.started[0], process=replace(real, **change))
    pool.kill(node)
    pool_file.write(recorded.with_started(mistaken))
    pool.kill(node)
    assert innocent.poll() is None
    assert pool.list_nodes()[0].phase is InstancePhase.GONE


def test_a_notice_names_its_deadline_in_wall_time(home: Home, pool: LocalMachines) -> None:
    (node,) = pool.add(LAUNCH)
    before = wall_s()
    pool.notice(node, 30.0)
    deadline = json.loads((home.node(node) / "notice.json").read_text())["deadline_unix"]
    assert before + 30 <= deadline <= wall_s() + 30
    pool.withdraw_notice(node)
    assert not (home.node(node) / "notice.json").exists()


def test_signal_all_reaches_the_manager_too_and_reports_who_lived(pool: LocalMachines) -> None:
    pool.add(LAUNCH)
    pool.start_manager(SLEEPER)
    assert [s.name for s in pool.signal_all(signal.SIGKILL)] == ["local-1", "manager"]


def test_a_living_process_is_not_forgotten(pool: LocalMachines) -> None:
    pool.add(LAUNCH)
    with pytest.raises(InvalidInput, match="local-1"):
        pool.forget_all()


def test_a_forgotten_pool_leaves_no_record(home: Home, pool: LocalMachines) -> None:
    pool.start_manager(SLEEPER)
    (started,) = pool.signal_all(signal.SIGKILL)
    os.waitpid(started.process.pid, 0)
    pool.forget_all()
    assert pool.started() == ()
    assert not home.pool_file.exists()


def test_a_damaged_record_is_an_error_of_the_provider_not_an_empty_pool(
    home: Home, pool: LocalMachines
) -> None:
    home.pool_file.write_text("{")
    with pytest.raises(ProviderError, match=r"pool\.json"):
        pool.list_nodes()
    home.pool_file.unlink()


def test_a_zombie_counts_as_gone() -> None:
    process = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)
    assert processes.identify(process.pid) is None
    process.wait()


def test_the_agent_is_told_its_slots_and_memory() -> None:
    launch = AgentLaunch(manager="h:1", slots=2, memory_bytes=5, copies_bytes=7)
    command = agent_command(launch, "local-1", "/n")
    assert command[-6:] == ("--slots", "2", "--memory-bytes", "5", "--copies-bytes", "7")


def test_copies_of_all_nodes_take_a_quarter_of_the_machine() -> None:
    assert copies_share(1600, 4) == 100
    assert copies_share(1600, 0) == 400
    assert copies_share(0, 4) is None  # unknown: the agent finds out


def test_a_ticket_goes_through_stdin_and_onto_no_command_line(home: Home) -> None:
    told = home.root / "told"
    program = "import sys, time; words = repr((sys.argv, sys.stdin.read()))\n" + (
        f"open({str(told)!r}, 'w').write(words); time.sleep(60)"
    )
    machines = LocalMachines(home, "p", command=lambda *_: (sys.executable, "-I", "-S", "-c", program))
    machines.add(replace(LAUNCH, ticket=lambda node: f"secret of {node}"))
    try:
        deadline = time.monotonic() + 20
        while not told.exists() or not told.read_text().endswith(")"):
            assert time.monotonic() < deadline, "never told"
        arguments, text = ast.literal_eval(told.read_text())
        assert (arguments[-2:], text) == (["--join", "-"], "secret of p-1\n")
        assert not any("secret" in argument for argument in arguments)
    finally:
        machines.signal_all(signal.SIGKILL)


def test_pools_of_one_machine_know_only_their_own_nodes(home: Home, pool: LocalMachines) -> None:
    other = LocalMachines(home, "other", command=lambda *_: SLEEPER)
    pool.add(LAUNCH)
    (node,) = other.add(LAUNCH)
    assert node == "other-2"
    assert [i.node for i in pool.list_nodes()] == ["local-1"]
    with pytest.raises(InvalidInput, match="no node other-2 in the local pool; its nodes: local-1"):
        pool.kill(node)
    pool.notice(node, 30.0)
    assert (home.node(node) / "notice.json").exists(), "a person may give notice to any of them"


def test_a_pool_that_only_varuna_up_sizes_says_so_in_its_bounds(pool: LocalMachines) -> None:
    pool.add(LAUNCH, 2)
    provider = LocalProvider(pool)
    reading = provider.read(0.0)
    assert (reading.least, reading.desired, reading.most) == (2, 2, 2)
    with pytest.raises(InvalidInput, match="only `varuna up` does"):
        provider.grow(3, reading)


def test_processes_that_ended_leave_no_zombie_of_ours(pool: LocalMachines) -> None:
    (node,) = pool.add(LAUNCH)
    pid = pool.started()[0].process.pid
    pool.kill(node)
    deadline = time.monotonic() + 20
    while Path(f"/proc/{pid}").exists():
        pool.list_nodes()
        assert time.monotonic() < deadline, "still a zombie"


@pytest.mark.parametrize("calls", [[4], [1, 8], [2, 4, 8], [8], [16]])
def test_nodes_added_bit_by_bit_never_claim_more_than_the_machine_has(calls: list[int]) -> None:
    machine_bytes, given = 64 * 2**30, 0
    for before, count in zip([0, *calls], calls, strict=False):
        given += (count - before) * fair_share(machine_bytes, count)
    assert machine_bytes // 3 < given <= machine_bytes * 4 // 5
