"""Makes step 0 of a job out of weights in files; a process of its own, like `inspection`.

`python -m varuna_runtime.worker.importing ORDER.json --job JOB.json --workdir DIR --fd N ENTRY ARGS...`.
"""

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from pickle import UnpicklingError
from tempfile import TemporaryDirectory
from typing import NoReturn
from zipfile import BadZipFile

import torch
from safetensors.torch import save_file
from torch import Tensor

from varuna_runtime.checkpoint.assembly import Incomplete, RankRecord, assemble, segment_names
from varuna_runtime.checkpoint.manifests import commit
from varuna_runtime.checkpoint.shards import ShardLabel, describe
from varuna_runtime.checkpoint.tensors import encode
from varuna_runtime.partition import PartitionedModel
from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import CheckpointRefused, ModelRefused
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.manifest import ImportOrder, ShardEntry, TrainerState
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.store import Store, open_store
from varuna_runtime.worker.forkable import refuse_unforkable
from varuna_runtime.worker.hosts import ScriptStopped
from varuna_runtime.worker.inspection import main
from varuna_runtime.worker.partitioning import partition_of
from varuna_runtime.worker.training import Training, resolve

GENERATION = 0
"""The commits of a job's own generations come later."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Imported:
    """What was imported."""

    model: ModelRecord
    warnings: tuple[str, ...]
    num_bytes: int


class ImportHost:
    """Takes the `varuna.train` call, saves the initial values of its model and stops the script."""

    def __init__(self, order: ImportOrder, spec: JobSpec | None) -> None:
        self._order, self._spec = order, spec
        self.answer: object | None = None

    def run(self, training: Training) -> NoReturn:
        """Write step 0; never returns."""
        refuse_unforkable()
        settings = resolve(training, self._spec)
        with safetensors_of(Path(self._order.weights)) as weights:
            partitioned = partition_of(replace(training, pretrained=weights))
            record = ModelRecord(
                segments=partitioned.record_segments,
                tied=partitioned.tied,
                aliases=partitioned.aliases,
                num_samples=settings.num_samples,
                num_steps=settings.num_steps,
            )
            store = open_store(self._order.store_url)
            num_bytes = write_step(store, self._order.job, partitioned, record, seed=settings.seed)
        warnings = tuple(text.replace(str(weights), self._order.weights) for text in partitioned.warnings)
        self.answer = Imported(model=record, warnings=warnings, num_bytes=num_bytes)
        raise ScriptStopped


def write_step(
    store: Store, job: str, partitioned: PartitionedModel, record: ModelRecord, *, seed: int
) -> int:
    """Put step 0 of a job with its initial values, one segment in memory at a time; return its bytes."""
    entries: list[ShardEntry] = []
    held = []
    for segment in record.segments:
        values = partitioned.initial_values(segment.index, seed=seed)
        kinds = {tensor.name: "buffer" if tensor.is_buffer else "param" for tensor in segment.tensors}
        tensors = {f"{kinds[name]}:{name}": value for name, value in values.items()}
        held.append(segment_names(segment.index, tensors))
        if tensors:
            label = ShardLabel(job=job, step=0, generation=GENERATION, segment=segment.index, part=0)
            data = encode(label, tensors)
            store.put(label.key, data)
            entries.append(describe(data))
    wrote = RankRecord(
        step=0, generation=GENERATION, rank=0, held=tuple(held), shards=tuple(entries), error=""
    )
    trainer = TrainerState(step=0, optimizer_groups="", scheduler="", stream_cursor="", losses=())
    made = assemble([wrote], job=job, generation=GENERATION, model=record, trainer=trainer)
    if isinstance(made, Incomplete):
        raise CheckpointRefused(f"the weights make no checkpoint: {made.reason}")
    commit(store, made)
    return sum(entry.num_bytes for entry in entries)


@contextmanager
def safetensors_of(path: Path) -> Iterator[Path]:
    """Give the weights as safetensors; a file of `torch.save` becomes one for as long as the context lasts.

    Such a file may hold the state dict itself, or have it under "model" or "state_dict".
    """
    if path.is_dir() or path.suffix in (".safetensors", ".json") or not path.exists():
        yield path
        return
    with TemporaryDirectory(prefix="varuna-import-") as scratch:
        converted = Path(scratch, "weights.safetensors")
        save_file({n: t.clone().contiguous() for n, t in _state_dict(path).items()}, converted)
        yield converted


def _state_dict(path: Path) -> dict[str, Tensor]:
    try:
        found = torch.load(path, map_location="cpu", weights_only=True)
    except (UnpicklingError, BadZipFile, OSError, RuntimeError, ValueError, EOFError, KeyError) as err:
        reason = " ".join(str(err).split("\n")[0].split())[:200]
        raise ModelRefused(f"{path}: neither safetensors nor weights for torch.load: {reason}") from err
    for key in ("model", "state_dict"):
        if isinstance(found, dict) and isinstance(found.get(key), dict):
            found = found[key]
            break
    if not isinstance(found, dict) or not found:
        raise ModelRefused(f"{path}: seen a {type(found).__name__}, wanted a state dict of a model")
    if wrong := [str(name) for name, value in found.items() if not isinstance(value, Tensor)]:
        raise ModelRefused(f"{path}: {', '.join(wrong[:5])} are no tensors; wanted a state dict of a model")
    return {str(name): value for name, value in found.items()}


if __name__ == "__main__":
    _order = canonical.loads(ImportOrder, Path(sys.argv[1]).read_bytes())
    sys.exit(main(sys.argv[2:], lambda spec: ImportHost(_order, spec)))
