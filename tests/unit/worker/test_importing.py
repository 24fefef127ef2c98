"""Weights in files as others wrote them."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from varuna_runtime.spec.errors import ModelRefused
from varuna_runtime.worker.importing import safetensors_of


@pytest.mark.parametrize("key", ["", "model", "state_dict"])
def test_a_state_dict_becomes_safetensors_for_a_while(key: str, tmp_path: Path) -> None:
    state = {"w": torch.arange(6.0).view(2, 3).t()}
    torch.save({key: state, "step": 3} if key else state, tmp_path / "weights.pt")
    with safetensors_of(tmp_path / "weights.pt") as path:
        assert load_file(path)["w"].equal(state["w"])
    assert not path.exists()


def test_a_pickle_that_would_run_something_is_refused_unrun(tmp_path: Path) -> None:
    (tmp_path / "evil.pt").write_bytes(b"\x80\x02cposix\nsystem\n(Vtrue\ntR.")
    with (
        pytest.raises(ModelRefused, match=r"neither safetensors nor weights for torch\.load"),
        safetensors_of(tmp_path / "evil.pt"),
    ):
        pass


def test_what_is_no_state_dict_is_told(tmp_path: Path) -> None:
    torch.save({"w": torch.zeros(1), "epoch": 3}, tmp_path / "weights.pt")
    with pytest.raises(ModelRefused, match="epoch are no tensors"), safetensors_of(tmp_path / "weights.pt"):
        pass
