"""A checkpoint as plain safetensors files, which other tools read; torch-free, one shard in memory's reach.

A shard is fetched to disk, compared with its checksum, and its tensors are copied from there to their places.
"""

import json
import mmap
import os
import shutil
import tempfile
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from varuna_runtime.checkpoint import shards
from varuna_runtime.checkpoint.headers import DTYPES, size_of
from varuna_runtime.spec.errors import CheckpointRefused, ObjectMissing
from varuna_runtime.spec.manifest import Manifest, ShardEntry, TensorEntry
from varuna_runtime.spec.pieces import PieceName
from varuna_runtime.store import Store

FILE_BYTES = 5 * 10**9  # of one file, as Hugging Face's tools have it
_KINDS = {dtype: kind for kind, dtype in DTYPES.items()}
_CHUNK_BYTES = 2**22


@dataclass(frozen=True, slots=True, kw_only=True)
class Output:
    """A tensor of an export."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def num_bytes(self) -> int:
        """Size of the values."""
        return size_of(self.dtype, self.shape)


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Where the values of one tensor of a checkpoint go."""

    output: Output
    offset: int = 0  # bytes from its beginning


Targets = Mapping[str, tuple[Target, ...]]  # by the tensor's name in the checkpoint


def weights(manifest: Manifest) -> dict[str, tuple[Target, ...]]:
    """Return the parameters and buffers by their names in the model, a tied one under each of its names."""
    names = {tied[0]: tied for tied in manifest.tied}
    found: dict[str, tuple[Target, ...]] = {}
    for entry in _tensors(manifest):
        kind, _, name = entry.name.partition(":")
        if kind in ("param", "buffer"):
            found[entry.name] = tuple(
                Target(output=Output(name=each, dtype=entry.dtype, shape=entry.shape))
                for each in dict.fromkeys(names.get(name, (name,)))
            )
    return found


def optimizer_state(manifest: Manifest) -> dict[str, tuple[Target, ...]]:
    """Return the state of the optimizer, as `<parameter>:<state>`; slices are put together again."""
    shapes = {t.name.partition(":")[2]: t.shape for t in _tensors(manifest) if t.name.startswith("param:")}
    found: dict[str, tuple[Target, ...]] = {}
    for entry in _tensors(manifest):
        kind, _, rest = entry.name.partition(":")
        piece = PieceName.of(rest)
        if kind != "optim":
            continue
        shape = (
            entry.shape if piece.start is None else shapes.get(piece.whole.rpartition(":")[0], entry.shape)
        )
        output = Output(name=piece.whole, dtype=entry.dtype, shape=shape)
        offset = (piece.start or 0) * size_of(entry.dtype, ())
        if offset + entry.num_bytes > output.num_bytes:
            raise CheckpointRefused(f"{entry.name} goes beyond the end of its parameter")
        found[entry.name] = (Target(output=output, offset=offset),)
    return found


def export(
    store: Store,
    manifest: Manifest,
    folder: Path,
    kinds: Mapping[str, Targets],
    *,
    file_bytes: int = FILE_BYTES,
) -> tuple[Path, ...]:
    """Write the files of each kind, by the first part of their names, into a new folder; return them.

    CheckpointRefused, and no folder, when a shard is not what the manifest says.
    """
    with _new_folder(folder) as unfinished:
        for stem, targets in kinds.items():
            files = _planned(stem, targets, file_bytes)
            with _Files(unfinished, files) as out:
                for entry in manifest.shards:
                    if any(tensor.name in targets for tensor in entry.tensors):
                        with fetched(store, entry, unfinished) as data:
                            _copy(data, targets, out)
            if len(files) > 1:
                _write_index(unfinished / f"{stem}.safetensors.index.json", files)
    return tuple(sorted(folder.iterdir()))


@contextmanager
def fetched(store: Store, entry: ShardEntry, folder: Path) -> Iterator[mmap.mmap]:
    """Give the bytes of a shard, compared with its entry, for as long as the context lasts."""
    with tempfile.NamedTemporaryFile(dir=folder, prefix=".shard-") as file:
        try:
            store.get_file(entry.key, Path(file.name))
        except ObjectMissing as err:
            raise CheckpointRefused(f"{entry.key}: missing") from err
        if (num_bytes := Path(file.name).stat().st_size) != entry.num_bytes:
            raise CheckpointRefused(f"{entry.key}: {num_bytes} bytes, wanted {entry.num_bytes}")
        data = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        try:
            shards.check(entry, data)
            yield data
        finally:
            with suppress(BufferError):  # the frames of an exception may still look at it
                data.close()


def _tensors(manifest: Manifest) -> Iterator[TensorEntry]:
    for entry in manifest.shards:
        yield from entry.tensors


def _planned(stem: str, targets: Targets, file_bytes: int) -> dict[str, list[Output]]:
    """Return the outputs of each file, by its name; wide elements come first, so that all are aligned."""
    outputs = {target.output.name: target.output for each in targets.values() for target in each}
    groups: list[list[Output]] = [[]]
    room = file_bytes
    for output in outputs.values():
        if groups[-1] and output.num_bytes > room:
            groups.append([])
            room = file_bytes
        groups[-1].append(output)
        room -= output.num_bytes
    names = [f"{stem}-{i + 1:05d}-of-{len(groups):05d}.safetensors" for i in range(len(groups))]
    ordered = [sorted(group, key=lambda o: (-size_of(o.dtype, ()), o.name)) for group in groups]
    return dict(zip(names if len(groups) > 1 else [f"{stem}.safetensors"], ordered, strict=True))


class _Files:
    """The files being written, and where in them each output begins."""

    def __init__(self, folder: Path, files: Mapping[str, Sequence[Output]]) -> None:
        self._folder, self._files = folder, files
        self._open: list[BinaryIO] = []
        self._places: dict[str, tuple[BinaryIO, int]] = {}

    def __enter__(self) -> "_Files":
        """Write the headers."""
        for name, outputs in self._files.items():
            file = (self._folder / name).open("xb")
            self._open.append(file)
            header = _header(outputs)
            file.write(header)
            at = len(header)
            for output in outputs:
                self._places[output.name] = file, at
                at += output.num_bytes
            file.truncate(at)
        return self

    def __exit__(self, *_: object) -> None:
        """Close the files, synced."""
        for file in self._open:
            file.flush()
            os.fsync(file.fileno())
            file.close()

    def write(self, target: Target, data: mmap.mmap, start: int, stop: int) -> None:
        """Copy a range of a shard to its place."""
        file, at = self._places[target.output.name]
        file.seek(at + target.offset)
        for first in range(start, stop, _CHUNK_BYTES):
            file.write(data[first : min(first + _CHUNK_BYTES, stop)])


def _copy(data: mmap.mmap, targets: Targets, out: _Files) -> None:
    for tensor in shards.placed(data):
        for target in targets.get(tensor.name, ()):
            out.write(target, data, tensor.start, tensor.stop)


def _header(outputs: Collection[Output]) -> bytes:
    fields: dict[str, object] = {"__metadata__": {"format": "pt"}}
    at = 0
    for output in outputs:
        offsets = [at, at + output.num_bytes]
        fields[output.name] = {"dtype": _KINDS[output.dtype], "shape": output.shape, "data_offsets": offsets}
        at = offsets[1]
    text = json.dumps(fields, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text


def _write_index(path: Path, files: Mapping[str, Sequence[Output]]) -> None:
    places = {output.name: name for name, outputs in files.items() for output in outputs}
    total = sum(output.num_bytes for outputs in files.values() for output in outputs)
    index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(places.items()))}
    path.write_text(json.dumps(index, indent=2) + "\n")


@contextmanager
def _new_folder(folder: Path) -> Iterator[Path]:
    """Give a folder that takes its name once all went well, and is removed if not."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
    try:
        yield unfinished
        unfinished.chmod(0o755)
        unfinished.rename(folder)  # replaces an empty folder, never one with something in it
    except BaseException:
        shutil.rmtree(unfinished, ignore_errors=True)
        raise
