"""Initial values from safetensors: by name, one tensor at a time, whatever the files are."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor, nn

from varuna_runtime.partition import cut
from varuna_runtime.spec.errors import ModelRefused


def tied() -> nn.Module:
    table = nn.Embedding(5, 3)
    head = nn.Linear(3, 5)
    head.weight = table.weight
    return nn.Sequential(table, nn.Linear(3, 3), head)


def values() -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(1)
    return {
        "0.weight": torch.randn(5, 3, generator=generator),
        "1.weight": torch.randn(3, 3, generator=generator),
        "1.bias": torch.randn(3, generator=generator),
        "2.bias": torch.randn(5, generator=generator),
    }


def one_file(folder: Path, held: dict[str, Tensor]) -> Path:
    save_file(held, folder / "model.safetensors")
    return folder / "model.safetensors"


def in_a_folder(folder: Path, held: dict[str, Tensor]) -> Path:
    one_file(folder, held)
    return folder


def with_index(folder: Path, held: dict[str, Tensor]) -> Path:
    names = list(held)
    parts = {"a.safetensors": names[::2], "b.safetensors": names[1::2]}
    for file, part in parts.items():
        save_file({name: held[name] for name in part}, folder / file)
    index = folder / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": {n: file for file, part in parts.items() for n in part}}))
    return index


@pytest.mark.parametrize("layout", [one_file, in_a_folder, with_index])
def test_every_kind_of_path_gives_its_values(tmp_path: Path, layout: Callable[..., Path]):
    model = cut(tied, pretrained=layout(tmp_path, values()))
    assert model.warnings == ()
    state = model.initial_state(seed=1)
    assert all(state[name].equal(value) for name, value in values().items())


def test_a_tied_parameter_is_found_under_either_name_and_equal_in_every_copy(tmp_path: Path):
    held = values()
    held["2.weight"] = held.pop("0.weight")
    model = cut(tied, pretrained=one_file(tmp_path, held))
    first, last = (model.materialise(i, seed=1, device=torch.device("cpu")) for i in (0, 2))
    assert first.get_parameter("0.weight").equal(held["2.weight"])
    assert last.get_parameter("2.weight").equal(held["2.weight"])


def test_two_values_of_one_tensor_are_refused(tmp_path: Path):
    model = cut(tied, pretrained=one_file(tmp_path, values() | {"2.weight": torch.zeros(5, 3)}))
    with pytest.raises(ModelRefused, match=r"'0.weight' and '2.weight' are one tensor"):
        model.initial_state(seed=1)


def test_what_is_missing_is_initialised_as_ever_and_told_once(tmp_path: Path):
    held = values()
    del held["1.weight"]
    model = cut(tied, pretrained=one_file(tmp_path, held))
    assert [w.partition(" not in ")[0] for w in model.warnings] == ["pretrained: '1.weight'"]
    assert model.initial_state(seed=4)["1.weight"].equal(cut(tied).initial_state(seed=4)["1.weight"])


def test_values_take_the_type_of_the_model(tmp_path: Path):
    held = {name: value.bfloat16() for name, value in values().items()}
    state = cut(tied, pretrained=one_file(tmp_path, held)).initial_state(seed=1)
    assert state["1.bias"].dtype == torch.float32
    assert state["1.bias"].equal(held["1.bias"].float())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"3.weight": torch.zeros(1)}, "has '3.weight', which the model does not have"),
        ({"1.weight": torch.zeros(3, 4)}, r"'1.weight' has shape \(3, 4\)"),
        ({"1.weight": torch.zeros(3, 3, dtype=torch.int64)}, "'1.weight' has type I64"),
    ],
)
def test_what_does_not_fit_is_refused_by_name(tmp_path: Path, change: dict[str, Tensor], message: str):
    with pytest.raises(ModelRefused, match=message):
        cut(tied, pretrained=one_file(tmp_path, values() | change))


def test_a_path_without_files_and_files_that_are_none_are_refused(tmp_path: Path):
    with pytest.raises(ModelRefused, match="no safetensors at"):
        cut(tied, pretrained=tmp_path)
    (tmp_path / "bad.safetensors").write_bytes(b"\0" * 9)
    with pytest.raises(ModelRefused, match=r"bad.safetensors cannot be read"):
        cut(tied, pretrained=tmp_path)
    (tmp_path / "i.json").write_text("[]")
    with pytest.raises(ModelRefused, match="is no index"):
        cut(tied, pretrained=tmp_path / "i.json")
