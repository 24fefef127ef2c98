from pathlib import Path

import pytest
import torch

from tests.support import toys
from tests.support.fleet import Fleet
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.worker.lone import LoneHost

JOB = """name: toy
entrypoint: train.py
batch_size: 11
micro_batch_size: 2
virtual_replicas: 4
steps: 2
"""


def test_a_lone_run_trains_to_the_end_and_reports(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VARUNA_JOB", raising=False)
    lines: list[str] = []
    result = LoneHost(lines.append).run(toys.tied_training(steps=2))
    assert result.step == len(result.losses) == 2
    assert "0.table.weight" in result.state
    assert lines[-1].startswith("step 2/2  loss ")


def test_a_lone_run_of_a_job_file_has_the_bits_of_the_job(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(JOB)
    monkeypatch.setenv("VARUNA_JOB", str(job))
    training = toys.tied_training(batch_size=4, steps=9, seed=0)
    result = LoneHost(lambda line: None).run(training)
    fleet = Fleet(toys.tied_training(seed=0), "2x2").train(2)
    assert list(result.losses) == [step.loss for step in fleet.steps]
    assert all(t.equal(fleet.tensors[f"param:{name}"]) for name, t in result.state.items())


def test_a_lone_run_leaves_the_random_state_of_the_script_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VARUNA_JOB", raising=False)
    before = torch.get_rng_state()
    LoneHost(lambda line: None).run(toys.tied_training(steps=1))
    assert torch.get_rng_state().equal(before)


@pytest.mark.parametrize(
    ("text", "message"), [(None, "cannot be read"), ("batch_size: many\n", "batch_size")]
)
def test_a_bad_job_file_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str | None, message: str
) -> None:
    job = tmp_path / "job.yaml"
    if text is not None:
        job.write_text(text)
    monkeypatch.setenv("VARUNA_JOB", str(job))
    with pytest.raises(InvalidInput, match=message):
        LoneHost().run(toys.tied_training())
