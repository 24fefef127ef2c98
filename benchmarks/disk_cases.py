"""C1 and C3: durable saves to a disk, and loads from it, against the disk itself and DCP."""

import os
import shutil
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

import torch
from torch import Tensor
from torch.distributed.checkpoint.filesystem import FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from benchmarks.joined import Joined
from benchmarks.measure import Case, Claim, Row, Samples, Spread
from benchmarks.options import Options
from benchmarks.saved_state import JOB, Saves, Size, filled, flat
from benchmarks.testbed import Loopback, Place, Ranks, Runner, in_turns
from varuna_runtime.checkpoint import read_manifest
from varuna_runtime.checkpoint.checksums import BLOCK_BYTES, tag
from varuna_runtime.checkpoint.tensors import iter_tensors
from varuna_runtime.store.local import FileStore

NUM_RANKS, ROUNDS = 2, 9
SIZE = Size(segments=6, params=7)
QUICK = Size(segments=2, params=2)
OURS, RAW, RAW_PARALLEL = "ours", "raw", "raw, four readers a rank"
DCP, DCP_TWO = "DCP", "DCP, two threads"
_CHUNK_BYTES = 4 << 20


def c1(options: Options) -> Case:
    """Measure saves that survive the loss of power."""
    size = QUICK if options.quick else SIZE
    names = [RAW, OURS, DCP, DCP_TWO]
    samples = Samples()
    with _folder() as folder, Ranks(Loopback(NUM_RANKS), _saving(folder, size)) as ranks:
        for name in names:
            ranks.run(name)
            ranks.run("tidy")
        for round_, name, run in in_turns(ranks, names, options.rounds(ROUNDS)):
            options.keep(samples, round_, name, run)
            ranks.run("tidy")
    case = Case(name="C1", title="a durable save", settings=settings_of(size))
    case.rows += rows_of(samples, size)
    speed = samples.speedup(OURS, RAW)
    case.claims.append(Claim(text="speed of ours / raw write and fsync", value=speed, target=0.95))
    case.notes += [
        f"ours / DCP {said(samples.speedup(OURS, DCP))}, DCP / raw {said(samples.speedup(DCP, RAW))}.",
        "Raw writes each tensor to one file a rank and syncs it. Ours is all of a save: copy, checksums, "
        "shards, syncs, records of all ranks, manifest. DCP syncs its files too.",
        samples.noise(),
    ]
    return case


def c3(options: Options) -> Case:
    """Measure loads into tensors that are there, from the disk and from the page cache."""
    size = QUICK if options.quick else SIZE
    names = [RAW, RAW_PARALLEL, OURS, DCP]
    case = Case(name="C3", title="a load", settings=settings_of(size))
    with _folder() as folder, Ranks(Loopback(NUM_RANKS), _loading(folder, size)) as ranks:
        ranks.run("write")
        for heat, target in (("cold", 0.8), ("warm", 0.7)):
            samples = Samples()
            for name in names:
                ranks.run(name)
            for round_ in range(options.rounds(ROUNDS)):
                first = round_ % len(names)
                for name in (*names[first:], *names[:first]):
                    ranks.run(f"{heat} {name}")
                    options.keep(samples, round_, name, ranks.run(name, round_))
            case.rows += rows_of(samples, size, f", {heat}")
            for limit in (RAW, RAW_PARALLEL):
                case.claims.append(
                    Claim(
                        text=f"{heat}: speed of ours / {limit} with the same checksum",
                        value=samples.speedup(OURS, limit),
                        target=target,
                    )
                )
            case.notes.append(f"{heat}: ours / DCP {said(samples.speedup(OURS, DCP))}; {samples.noise()}.")
    return case


def settings_of(size: Size) -> str:
    """Say how much is saved."""
    num_tensors = 3 * size.segments * size.params
    return f"{NUM_RANKS} ranks, {size.num_bytes / 1e9:.2f} GB each, in {num_tensors} tensors"


def rows_of(samples: Samples, size: Size, suffix: str = "") -> list[Row]:
    """Return a row with the speed of each configuration."""
    total_mb = NUM_RANKS * size.num_bytes / 1e6
    return [
        Row(
            name=f"{name}{suffix}",
            step_s=samples.step(name),
            shares={"MB/s": total_mb / samples.step(name).median},
        )
        for name in samples.names
    ]


def said(ratio: Spread) -> str:
    """Return median and quartiles."""
    return f"{ratio.median:.2f} [{ratio.low:.2f}-{ratio.high:.2f}]"


def _folder() -> "tempfile.TemporaryDirectory[str]":
    """Return a folder on a disk: the present one may be, a temporary one may be memory."""
    return tempfile.TemporaryDirectory(prefix=".benchmark-", dir=Path.cwd())


def _saving(folder: str, size: Size) -> Callable[[Place], Mapping[str, Runner]]:
    def build(place: Place) -> Mapping[str, Runner]:
        joined, root = Joined.at(place), Path(folder)
        tensors = filled(size, place.rank)
        named = flat(tensors)
        saves = Saves(joined, FileStore(root / "ours"), size)

        def tidy(_: int) -> None:
            if place.rank == 0:
                for child in root.iterdir():
                    shutil.rmtree(child)
                os.sync()

        return {
            RAW: lambda _: _write(root / "raw" / str(place.rank), named),
            OURS: lambda _: saves.save(tensors),
            DCP: lambda round_: _dcp_save(root / f"dcp{round_}", named, num_threads=1),
            DCP_TWO: lambda round_: _dcp_save(root / f"two{round_}", named, num_threads=2),
            "tidy": tidy,
        }

    return build


def _loading(folder: str, size: Size) -> Callable[[Place], Mapping[str, Runner]]:
    def build(place: Place) -> Mapping[str, Runner]:
        joined, root = Joined.at(place), Path(folder)
        tensors = filled(size, place.rank)
        wanted = {name: float(tensor.sum()) for name, tensor in flat(tensors).items()}
        into = flat(tensors)
        store, raw, peer = FileStore(root / "ours"), root / "raw" / str(place.rank), root / "dcp"
        saves = Saves(joined, store, size)

        def write(_: int) -> None:
            saves.save(tensors)
            _write(raw, into)
            _dcp_save(peer, into, num_threads=1)
            for tensor in into.values():
                tensor.zero_()
            load(0)
            assert {name: float(tensor.sum()) for name, tensor in into.items()} == wanted

        def load(_: int) -> None:
            for _pair in iter_tensors(store, read_manifest(store, JOB, 1), list(tensors), into):
                pass

        files = {RAW: raw.parent, RAW_PARALLEL: raw.parent, OURS: root / "ours", DCP: peer}
        made: dict[str, Runner] = {f"cold {name}": _evicting(held) for name, held in files.items()}
        made |= {f"warm {name}": _warming(held) for name, held in files.items()}
        return made | {
            "write": write,
            RAW: lambda _: _read(raw, into, num_readers=1),
            RAW_PARALLEL: lambda _: _read(raw, into, num_readers=4),
            OURS: load,
            DCP: lambda _: dcp_load(dict(into), checkpoint_id=peer),
        }

    return build


def _write(path: Path, tensors: Mapping[str, Tensor]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("wb", buffering=0) as out:
        for tensor in tensors.values():
            rest = tensor.view(-1).view(torch.uint8).numpy().data
            while rest:
                rest = rest[out.write(rest[:_CHUNK_BYTES]) :]
        os.fsync(out.fileno())


def _read(path: Path, tensors: Mapping[str, Tensor], *, num_readers: int) -> None:
    """Read each tensor from its place, block by block, and check each block."""
    from concurrent.futures import ThreadPoolExecutor

    starts, start = [], 0
    for tensor in tensors.values():
        starts.append(start)
        start += tensor.nbytes

    def read(tensor: Tensor, begin: int) -> None:
        memory = tensor.view(-1).view(torch.uint8).numpy().data
        for at in range(0, len(memory), BLOCK_BYTES):
            block = memory[at : at + BLOCK_BYTES]
            assert os.preadv(handle, [block], begin + at) == len(block)
            tag(block)

    handle = os.open(path, os.O_RDONLY)
    try:
        if num_readers == 1:
            for tensor, begin in zip(tensors.values(), starts, strict=True):
                read(tensor, begin)
            return
        with ThreadPoolExecutor(num_readers) as pool:
            list(pool.map(read, tensors.values(), starts))
    finally:
        os.close(handle)


def _dcp_save(folder: Path, tensors: Mapping[str, Tensor], *, num_threads: int) -> None:
    writer = FileSystemWriter(folder, thread_count=num_threads)
    dcp_save(dict(tensors), storage_writer=writer)


def _evicting(folder: Path) -> Runner:
    def evict(_: int) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                handle = os.open(path, os.O_RDONLY)
                os.fsync(handle)
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
                os.close(handle)

    return evict


def _warming(folder: Path) -> Runner:
    def warm(_: int) -> None:
        for path in folder.rglob("*"):
            if path.is_file():
                with path.open("rb", buffering=0) as source:
                    while source.read(_CHUNK_BYTES):
                        pass

    return warm
