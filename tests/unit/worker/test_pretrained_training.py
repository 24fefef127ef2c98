"""A training that starts from given values starts from them on every layout."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tests.support import toys
from tests.support.fleet import Fleet, assert_equal_bits
from varuna_runtime.worker.lone import LoneHost


@pytest.fixture
def values(tmp_path: Path) -> dict[str, Tensor]:
    torch.manual_seed(3)
    held = toys.tied_language_model().state_dict()
    del held["3.weight"]  # tied to the table
    save_file(held, tmp_path / "model.safetensors")
    return held


def test_a_lone_run_starts_from_the_values_of_the_file(
    values: dict[str, Tensor], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("VARUNA_JOB", raising=False)
    training = toys.tied_training(
        steps=1, pretrained=tmp_path, optimizer=lambda named: torch.optim.SGD(named, lr=0.0)
    )
    state = LoneHost(lambda line: None).run(training).state
    assert all(state[name].equal(value) for name, value in values.items())


@pytest.mark.parametrize("layout", ["3x1", "2x2"])
def test_every_layout_has_the_bits_of_one_process(
    values: dict[str, Tensor], tmp_path: Path, layout: str
) -> None:
    training = toys.tied_training(pretrained=tmp_path)
    alone = Fleet(training, "1x1").train(2)
    assert_equal_bits(Fleet(training, layout).train(2), alone)
    elsewhere = Fleet(toys.tied_training(), "1x1").train(2).tensors
    assert not elsewhere["param:0.table.weight"].equal(alone.tensors["param:0.table.weight"])
