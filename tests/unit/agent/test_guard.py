import os
import subprocess
import sys
from pathlib import Path

from varuna_runtime.agent import guard


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
