"""What the client makes of a script that never answers, or answers and does not end."""

import os
import subprocess
import sys

import pytest

from varuna_manager.cli.scripts import ScriptRefused, heard, parsed
from varuna_runtime.spec.job import JobSpec

JOB = JobSpec(name="j", entrypoint="train.py", batch_size=4)
FOREVER = "while True: pass"
ANSWERS = "import os, sys, threading; os.write(int(sys.argv[1]), b'{}'); os.close(int(sys.argv[1]));"


def answer_of(text: str, within_s: float) -> tuple[bytes, int | None]:
    read_end, write_end = os.pipe()
    with os.fdopen(read_end, "rb") as answers:
        process = subprocess.Popen([sys.executable, "-c", text, str(write_end)], pass_fds=(write_end,))
        os.close(write_end)
        heard_of = heard(process, answers, within_s)
    assert process.returncode is not None
    return heard_of


def test_a_script_that_never_answers_is_ended_and_told() -> None:
    text, code = answer_of(FOREVER, within_s=0.2)
    assert (text, code) == (b"", None)
    with pytest.raises(ScriptRefused, match=r"seen no call of varuna\.train within 150 s"):
        parsed(text, code, JOB)


def test_a_script_that_answers_but_does_not_end_is_ended() -> None:
    text, _ = answer_of(f"{ANSWERS} threading.Thread(target=threading.Event().wait).start()", within_s=60.0)
    assert text == b"{}"


def test_a_script_that_dies_is_told_by_its_signal() -> None:
    text, code = answer_of("import os; os.kill(os.getpid(), 9)", within_s=60.0)
    with pytest.raises(ScriptRefused, match=r"train\.py ended with SIGKILL before its model was known"):
        parsed(text, code, JOB)
