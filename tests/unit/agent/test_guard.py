import contextlib
import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from varuna_runtime.agent import guard

Nested = tuple["subprocess.Popen[bytes]", int]


def sleeper(**environment: str) -> "subprocess.Popen[bytes]":
    return subprocess.Popen(["sleep", "600"], env=environment, start_new_session=True)


def test_only_processes_with_exactly_this_marker_are_ended() -> None:
    ours, longer, other = sleeper(MARK="abc"), sleeper(MARK="abcd"), sleeper(OTHER="MARK=abc")
    try:
        assert guard.marked("MARK=abc") == (ours.pid,)
        assert guard.end_marked("MARK=abc")
        assert ours.wait(5) == -9
        assert longer.poll() is None
        assert other.poll() is None
    finally:
        for process in (longer, other):
            process.kill()
            process.wait()


def test_the_end_of_the_pipe_ends_the_marked_and_removes_the_folder(tmp_path: Path) -> None:
    run = tmp_path / "run"
    run.mkdir()
    (run / "socket").touch()
    ours = sleeper(MARK="xyz")
    read_end, write_end = os.pipe()
    arguments = [str(read_end), str(os.getpid()), "MARK=xyz", str(run)]
    process = subprocess.Popen(
        [sys.executable, "-I", "-S", guard.__file__, *arguments], pass_fds=(read_end,), env={}
    )
    os.close(read_end)
    assert process.poll() is None
    os.close(write_end)
    assert process.wait(10) == 0
    assert ours.wait(5) == -9
    assert not run.exists()


# Below the parent: a shell, and below that one a process of its own session and without environment.
NESTED = ["sh", "-c", "env -i setsid sleep 600 & echo $!; read line"]


@pytest.fixture
def nested() -> Iterator[Nested]:
    parent = subprocess.Popen(NESTED, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert parent.stdout is not None
    escaped = os.pidfd_open(int(parent.stdout.readline()))
    yield parent, escaped
    with contextlib.suppress(ProcessLookupError):
        signal.pidfd_send_signal(escaped, signal.SIGKILL)
    os.close(escaped)
    parent.kill()
    parent.communicate()


def has_ended(pidfd: int, within_s: float) -> bool:
    return bool(select.select([pidfd], [], [], within_s)[0])


def test_a_process_seen_once_is_ended_though_it_sheds_session_environment_and_parent(nested: Nested) -> None:
    parent, escaped = nested
    innocent = sleeper(OTHER="abc")
    family = guard.Family(parent.pid)
    family.look()
    parent.kill()
    parent.wait()
    assert not has_ended(escaped, 0)
    assert family.end()
    assert has_ended(escaped, 5)
    assert innocent.poll() is None
    innocent.kill()
    innocent.wait()


# Three children: one as an agent starts its vault, one without that mark, one below which somebody claims it.
SPARING = f"""
{guard.SPARED}=$$ sleep 600 & echo $!
{guard.SPARED}=1 sleep 600 & echo $!
sh -c "{guard.SPARED}=$$ sleep 600 & echo \\$!; wait" &
read line
"""


def test_a_family_spares_what_its_root_started_to_outlive_it_and_nothing_else() -> None:
    root = subprocess.Popen(["sh", "-c", SPARING], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert root.stdout is not None
    spared, other, claiming = (os.pidfd_open(int(root.stdout.readline())) for _ in range(3))
    family = guard.Family(root.pid)
    family.look()
    assert family.end()
    assert has_ended(other, 5)
    assert has_ended(claiming, 5)
    assert not has_ended(spared, 0)
    signal.pidfd_send_signal(spared, signal.SIGKILL)
    root.kill()
    root.communicate()
    for each in (spared, other, claiming):
        os.close(each)


def test_a_family_spares_its_root_and_who_is_set_apart(nested: Nested) -> None:
    parent, escaped = nested
    with Path(f"/proc/self/fdinfo/{escaped}").open() as lines:
        pid = next(int(line.split()[1]) for line in lines if line.startswith("Pid:"))
    family = guard.Family(parent.pid, apart=(pid,))
    family.look()
    assert family.end()
    assert parent.poll() is None
    assert not has_ended(escaped, 0)
