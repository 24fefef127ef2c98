"""A checkpoint as one file for `torch.load`; the only place that writes a pickle, and it never reads one."""

import os
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file
from torch import Tensor

from varuna_runtime.checkpoint.export import Targets, export
from varuna_runtime.spec.errors import CheckpointRefused
from varuna_runtime.spec.manifest import Manifest
from varuna_runtime.store import Store
from varuna_runtime.worker.plain import from_text


def write_torch(store: Store, manifest: Manifest, path: Path, kinds: Mapping[str, Targets]) -> None:
    """Write {"model", "optimizer" if asked for, "step"}; takes the memory of what it holds."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=path.parent, prefix=f".{path.name}-") as scratch:
        export(store, manifest, Path(scratch, "files"), kinds, file_bytes=2**62)
        found = {stem: load_file(Path(scratch, "files", f"{stem}.safetensors")) for stem in kinds}
        document: dict[str, Any] = {"model": _tied(found["model"], manifest), "step": manifest.step}
        if "optimizer" in kinds:
            document["optimizer"] = optimizer_dict(found["optimizer"], manifest)
        whole = Path(scratch, "whole")
        with whole.open("wb") as out:
            torch.save(document, out)
            out.flush()
            os.fsync(out.fileno())
        whole.rename(path)


def optimizer_dict(state: Mapping[str, Tensor], manifest: Manifest) -> dict[str, Any]:
    """Return what `load_state_dict` of the script's optimizer takes; its groups number the parameters."""
    text = manifest.trainer.optimizer_groups
    try:
        groups: Any = from_text(text) if text else []
        numbers = {name: i for i, name in enumerate(name for group in groups for name in group["params"])}
    except (ValueError, TypeError, KeyError, RecursionError) as err:
        raise CheckpointRefused(f"step {manifest.step}: its optimizer's groups do not parse") from err
    found: dict[int, dict[str, object]] = {}
    for full_name, value in state.items():
        name, _, key = full_name.rpartition(":")
        key, _, number = key.partition("#")
        if name in numbers:
            found.setdefault(numbers[name], {})[key] = value.item() if number else value
    return {
        "state": dict(sorted(found.items())),
        "param_groups": [
            group | {"params": [numbers[n] for n in group["params"]], "param_names": group["params"]}
            for group in groups
        ],
    }


def _tied(weights: dict[str, Tensor], manifest: Manifest) -> dict[str, Tensor]:
    """Return the weights with one tensor under all names of a tied parameter."""
    for first, *others in manifest.tied:
        weights |= {name: weights[first] for name in others if first in weights}
    return weights
