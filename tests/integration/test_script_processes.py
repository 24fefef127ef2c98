"""Inspection and profiling as the client runs them: processes that answer on a pipe of their own."""

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from varuna_runtime.spec import canonical
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.profile import Profile

SCRIPT = """
import sys
from pathlib import Path

import torch
from torch import nn

import varuna_runtime as varuna

print("noise on stdout")
Path("seen.txt").write_text(" ".join(sys.argv[1:]))
varuna.train(
    model=lambda: nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2)),
    loss=lambda output, batch: nn.functional.mse_loss(output, batch[1]),
    optimizer=lambda named: torch.optim.SGD(list(named), lr=0.1),
    dataset=[(torch.ones(4), torch.ones(2))] * 10,
    batch_size=4,
    epochs=2,
)
"""
SPEC = JobSpec(name="j", entrypoint="train.py", batch_size=5, micro_batch_size=2, epochs=3)


@contextmanager
def asked(module: str, folder: Path, text: str, *args: str) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield the answer and the process, which may still run; it is killed at the end."""
    (folder / "train.py").write_text(text)
    (folder / "job.json").write_bytes(canonical.dumps(SPEC))
    read_end, write_end = os.pipe()
    command = [sys.executable, "-m", f"varuna_runtime.worker.{module}", "--job", str(folder / "job.json")]
    process = subprocess.Popen(
        [*command, "--workdir", str(folder), "--fd", str(write_end), "train.py", *args],
        pass_fds=(write_end,),
        stdout=subprocess.PIPE,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        text=True,
    )
    os.close(write_end)
    with process:
        try:
            with os.fdopen(read_end) as answers:
                (line,) = answers.read().splitlines()
            yield json.loads(line), process
        finally:
            process.kill()


@pytest.mark.parametrize("module", ["inspection", "profiling"])
def test_the_answer_is_one_line_whatever_the_script_prints(module: str, tmp_path: Path) -> None:
    with asked(module, tmp_path, SCRIPT, "--lr", "3") as (answer, process):
        printed, _ = process.communicate(timeout=60)
    assert (process.returncode, printed) == (0, "noise on stdout\n")
    assert (tmp_path / "seen.txt").read_text() == "--lr 3"
    model = canonical.loads(ModelRecord, json.dumps(answer["model"]))
    assert model.num_steps == 6
    if module == "profiling":
        profile = canonical.loads(Profile, json.dumps(answer["profile"]))
        assert [at.micro_batch_size for at in profile.by_micro_batch] == [2]
        assert profile.model_hash == model.hash()


def test_a_failure_is_an_answer_too(tmp_path: Path) -> None:
    with asked("inspection", tmp_path, "raise ValueError('bad')") as (answer, process):
        assert process.wait(60) == 1
    assert answer["error"]["kind"] == "user_error"
    assert answer["error"]["message"] == "ValueError: bad"


def test_an_answer_does_not_wait_for_threads_that_go_on(tmp_path: Path) -> None:
    text = "import threading\nthreading.Thread(target=threading.Event().wait).start()\n"
    with asked("inspection", tmp_path, text) as (answer, process):
        assert process.poll() is None
    assert answer["error"]["kind"] == "no_train"
