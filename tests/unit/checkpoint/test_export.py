"""Steps taken out as files: what plain torch and Hugging Face's tools make of them."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn

from tests.support import toys, transformers_models
from tests.support.fleet import Fleet
from tests.support.fleet_store import save
from varuna_manager.cli.checkpoint_torch import write_torch
from varuna_runtime.checkpoint import read_manifest
from varuna_runtime.checkpoint.export import FILE_BYTES, export, optimizer_state, weights
from varuna_runtime.spec.errors import CheckpointRefused
from varuna_runtime.spec.manifest import Manifest
from varuna_runtime.store import Store, open_store
from varuna_runtime.worker.training import Training


class TwoUses(nn.Module):
    """One parameter under two names, in one segment."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(toys.WIDTH, toys.WIDTH, bias=False)
        self.second = nn.Linear(toys.WIDTH, toys.WIDTH, bias=False)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.second(torch.tanh(self.first(x)))
        return out


def model_with_two_uses() -> nn.Module:
    return nn.Sequential(TwoUses(), nn.Linear(toys.WIDTH, 3))


class Saved:
    """Two steps of a training, made durable."""

    def __init__(self, training: Training, layout: str, folder: Path, **options: bool) -> None:
        fleet = Fleet(training, layout, **options)
        self.snapshot = fleet.train(2)
        self.store: Store = open_store((folder / "store").as_uri())
        save(fleet, self.store)
        self.manifest: Manifest = read_manifest(self.store, "job", 2)

    def weights(self) -> dict[str, Tensor]:
        """Parameters and buffers by their names in the checkpoint."""
        held = self.snapshot.tensors.items()
        return {name.partition(":")[2]: tensor for name, tensor in held if not name.startswith("optim:")}

    def exported(self, folder: Path, *, file_bytes: int = FILE_BYTES) -> Path:
        kinds = {"model": weights(self.manifest), "optimizer": optimizer_state(self.manifest)}
        export(self.store, self.manifest, folder, kinds, file_bytes=file_bytes)
        return folder

    def torch_file(self, path: Path) -> dict[str, Any]:
        kinds = {"model": weights(self.manifest), "optimizer": optimizer_state(self.manifest)}
        write_torch(self.store, self.manifest, path, kinds)
        found: dict[str, Any] = torch.load(path, weights_only=True)
        return found


MODELS = {
    "tied between segments": lambda: toys.tied_training(),
    "tied inside a segment": lambda: toys.mlp_training(model=model_with_two_uses),
    "buffers": lambda: toys.batch_norm_training(batch_size=8),
}


@pytest.mark.parametrize("layout", ["1x1", "2x2"])
@pytest.mark.parametrize("kind", MODELS)
def test_a_plain_model_takes_what_is_exported(kind: str, layout: str, tmp_path: Path) -> None:
    training = MODELS[kind]()
    saved = Saved(training, layout, tmp_path)
    found = load_file(saved.exported(tmp_path / "out") / "model.safetensors")
    plain = training.model()
    plain.load_state_dict(found, strict=True)
    from_torch = training.model()
    from_torch.load_state_dict(saved.torch_file(tmp_path / "all.pt")["model"], strict=True)
    assert saved.weights()
    for name, value in saved.weights().items():
        assert plain.state_dict()[name].equal(value), name
        assert from_torch.state_dict()[name].equal(value), name


@pytest.mark.parametrize("kind", MODELS)
def test_what_is_exported_can_be_started_from(kind: str, tmp_path: Path) -> None:
    saved = Saved(MODELS[kind](), "2x2", tmp_path)
    folder = saved.exported(tmp_path / "out")
    fleet = Fleet(replace(MODELS[kind](), pretrained=folder / "model.safetensors"), "1x1")
    assert fleet.model.warnings == ()
    held = fleet.snapshot().tensors
    for name, value in saved.snapshot.tensors.items():
        assert name.startswith("optim:") or held[name].equal(value), name


@pytest.mark.parametrize("at", [3, 40, -1], ids=["length", "header", "data"])
def test_a_damaged_shard_is_refused_by_name_wherever_the_damage_is(at: int, tmp_path: Path) -> None:
    saved = Saved(toys.mlp_training(), "2x1", tmp_path)
    shard = next(tmp_path.rglob("*.safetensors"))
    damaged = bytearray(shard.read_bytes())
    damaged[at] ^= 0x10
    shard.write_bytes(damaged)
    with pytest.raises(CheckpointRefused, match=shard.name):
        saved.exported(tmp_path / "out")


def test_names_of_one_parameter_are_one_tensor_in_the_file_for_torch(tmp_path: Path) -> None:
    found = Saved(toys.mlp_training(model=model_with_two_uses), "1x1", tmp_path).torch_file(tmp_path / "a.pt")
    model = found["model"]
    assert model["0.first.weight"].data_ptr() == model["0.second.weight"].data_ptr()


@pytest.mark.parametrize("layout", ["1x2", "2x2"])
def test_slices_of_a_sharded_optimizer_are_put_together(layout: str, tmp_path: Path) -> None:
    saved = Saved(toys.tied_training(), layout, tmp_path, shard_optimizer=True)
    assert any("@" in tensor.name for shard in saved.manifest.shards for tensor in shard.tensors)
    found = load_file(saved.exported(tmp_path / "out") / "optimizer.safetensors")
    held = saved.snapshot.tensors.items()
    wanted = {name.partition(":")[2]: tensor for name, tensor in held if name.startswith("optim:")}
    assert found.keys() == wanted.keys()
    assert all(found[name].equal(value) for name, value in wanted.items())


@pytest.mark.parametrize("is_shared", [False, True])
@pytest.mark.parametrize("kind", MODELS)
def test_the_optimizer_of_the_script_takes_its_state_from_the_file_for_torch(
    kind: str, is_shared: bool, tmp_path: Path
) -> None:
    training = MODELS[kind]()
    saved = Saved(training, "2x2", tmp_path, shard_optimizer=is_shared)
    found = saved.torch_file(tmp_path / "all.pt")
    plain = training.model()
    optimizer = training.optimizer(list(plain.named_parameters()))
    optimizer.load_state_dict(found["optimizer"])
    names = {id(parameter): name for name, parameter in plain.named_parameters()}
    restored = {
        f"{names[id(parameter)]}:{key}": value
        for parameter, state in optimizer.state.items()
        for key, value in state.items()
    }
    held = saved.snapshot.tensors.items()
    wanted = {name.partition(":")[2]: tensor for name, tensor in held if name.startswith("optim:")}
    assert restored.keys() == wanted.keys()
    assert wanted
    assert all(torch.as_tensor(restored[name]).equal(value) for name, value in wanted.items())
    plain.load_state_dict(found["model"])
    for parameter in plain.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()


def test_large_weights_are_several_files_with_an_index(tmp_path: Path) -> None:
    saved = Saved(toys.tied_training(), "1x1", tmp_path)
    folder = saved.exported(tmp_path / "out", file_bytes=400)
    index = json.loads((folder / "model.safetensors.index.json").read_text())
    files = sorted(path.name for path in folder.glob("model-*.safetensors"))
    assert len(files) > 2
    assert files[0].endswith(f"-of-{len(files):05d}.safetensors")
    found = {name: load_file(folder / file)[name] for name, file in index["weight_map"].items()}
    assert set(index["weight_map"].values()) == set(files)
    assert index["metadata"]["total_size"] == sum(t.numel() * t.element_size() for t in found.values())
    plain = toys.tied_language_model()
    plain.load_state_dict(found, strict=True)


@pytest.mark.parametrize("file_bytes", [FILE_BYTES, 20_000])
@pytest.mark.parametrize("kind", ["gpt2", "bert"])
def test_hugging_face_loads_an_exported_folder(kind: str, file_bytes: int, tmp_path: Path) -> None:
    training = transformers_models.training(kind)
    saved = Saved(training, "2x1", tmp_path)
    folder = saved.exported(tmp_path / "out", file_bytes=file_bytes)
    plain = training.model()
    plain.config.save_pretrained(folder)
    loaded, told = type(plain).from_pretrained(folder, output_loading_info=True)
    assert {key: list(names) for key, names in told.items() if names} == {}
    assert saved.weights()
    for name, value in saved.weights().items():
        assert loaded.state_dict()[name].equal(value), name
    if file_bytes == FILE_BYTES:
        plain.load_state_dict(load_file(folder / "model.safetensors"), strict=True)


def test_an_optimizer_without_state_is_exported_as_what_it_is(tmp_path: Path) -> None:
    training = toys.mlp_training(
        optimizer=lambda named: torch.optim.SGD(list(named), lr=0.25), scheduler=None
    )
    found = Saved(training, "1x1", tmp_path).torch_file(tmp_path / "all.pt")
    assert found["optimizer"]["state"] == {}
    optimizer = torch.optim.SGD(training.model().parameters(), lr=9.0)
    optimizer.load_state_dict(found["optimizer"])
    assert optimizer.param_groups[0]["lr"] == 0.25
