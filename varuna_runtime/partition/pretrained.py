"""Initial values from safetensors files, read by name and one tensor at a time."""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from varuna_runtime.spec.errors import ModelRefused

_SHOWN = 5  # names in a message


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a tensor of the model is: its names in the files, the first of which is read."""

    names: tuple[str, ...]
    files: tuple[Path, ...]  # one a name

    def read(self, dtype: torch.dtype) -> Tensor:
        """Return the values; ModelRefused if a tensor that has two names there has two values."""
        values = [_tensor(file, name) for name, file in zip(self.names, self.files, strict=True)]
        for name, value in zip(self.names[1:], values[1:], strict=True):
            if not value.equal(values[0]):
                raise ModelRefused(
                    f"pretrained: {self.names[0]!r} and {name!r} are one tensor here, two there"
                )
        return values[0].to(dtype)


class Pretrained:
    """The files of a checkpoint, matched with a model."""

    def __init__(self, path: str | Path, model: nn.Module) -> None:
        """Look at a file, a folder or an index of safetensors; reads no values.

        Raises ModelRefused, by name, for a tensor that the model does not have or has in another shape.
        """
        self._path = Path(path)
        files = _files(self._path.resolve())
        tensors = dict(model.named_parameters(remove_duplicate=False))
        tensors |= dict(model.named_buffers(remove_duplicate=False))  # type: ignore[arg-type]
        self._refuse_unknown(files, tensors)
        _refuse_mismatches(files, tensors)
        names: dict[int, list[str]] = {}
        for name, tensor in tensors.items():
            if name in files:
                names.setdefault(id(tensor), []).append(name)
        self.stored = {
            key: Stored(tuple(found), tuple(files[name] for name in found)) for key, found in names.items()
        }
        """By id of the model's tensors."""
        state = model.state_dict(keep_vars=True)
        self._missing = [name for name, tensor in state.items() if id(tensor) not in self.stored]

    @property
    def warning(self) -> str:
        """Which tensors keep the values they are built with; empty: none."""
        if not self._missing:
            return ""
        return f"pretrained: {_some(self._missing)} not in {self._path}: initialised as without it"

    def _refuse_unknown(self, files: Mapping[str, Path], tensors: Mapping[str, Tensor]) -> None:
        unknown = [name for name in files if name not in tensors]
        if unknown:
            raise ModelRefused(
                f"pretrained: {self._path} has {_some(unknown)}, which the model does not have; "
                "build the model they belong to, or rename or remove them in the file"
            )


def _files(path: Path) -> dict[str, Path]:
    """Return the file of every tensor name."""
    if path.is_dir():
        index = sorted(path.glob("*.safetensors.index.json"))
        if index:
            return _files(index[0])
        return {name: file for file in sorted(path.glob("*.safetensors")) for name in _names(file)} or _none(
            path
        )
    if not path.is_file():
        _none(path)
    if path.suffix == ".json":
        try:
            weights: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))["weight_map"]
        except (ValueError, KeyError, TypeError) as err:
            raise ModelRefused(f"pretrained: {path.name} is no index of safetensors files") from err
        return {name: path.parent / file for name, file in weights.items()}
    return dict.fromkeys(_names(path), path)


def _none(path: Path) -> dict[str, Path]:
    raise ModelRefused(
        f"pretrained: no safetensors at {path}; wanted a file, a folder or an index of them, below the job's "
        "working directory or at the same place on every node"
    )


def _names(file: Path) -> list[str]:
    try:
        with safe_open(file, framework="pt") as opened:
            return list(opened.keys())
    except (SafetensorError, OSError) as err:
        raise ModelRefused(f"pretrained: {file.name} cannot be read as safetensors: {err}") from err


def _refuse_mismatches(files: Mapping[str, Path], tensors: Mapping[str, Tensor]) -> None:
    found = [_mismatch(files[name], name, tensor) for name, tensor in tensors.items() if name in files]
    mistakes = [text for text in found if text]
    if mistakes:
        more = f"; and {len(mistakes) - _SHOWN} more" if len(mistakes) > _SHOWN else ""
        raise ModelRefused("pretrained: " + "; ".join(mistakes[:_SHOWN]) + more)


def _mismatch(file: Path, name: str, tensor: Tensor) -> str:
    """Return how a stored tensor differs from the model's, or nothing."""
    try:
        with safe_open(file, framework="pt") as opened:
            part = opened.get_slice(name)
            shape, kind = tuple(part.get_shape()), str(part.get_dtype())
    except (SafetensorError, OSError) as err:
        raise ModelRefused(f"pretrained: {name!r} cannot be read from {file.name}: {err}") from err
    if shape != tuple(tensor.shape):
        return f"{name!r} has shape {shape} in {file.name}, {tuple(tensor.shape)} here"
    if kind.startswith(("F", "BF")) != tensor.is_floating_point():
        return f"{name!r} has type {kind} in {file.name}, {tensor.dtype} here"
    return ""


def _tensor(file: Path, name: str) -> Tensor:
    with safe_open(file, framework="pt") as opened:
        value: Tensor = opened.get_tensor(name)
        return value


def _some(names: list[str]) -> str:
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return ", ".join(map(repr, names[:_SHOWN])) + more
