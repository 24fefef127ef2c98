"""Reads shards into memory piece by piece, several ranges at a time, each checked as it comes; torch-free."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field

from varuna_runtime.checkpoint import shards
from varuna_runtime.checkpoint.checksums import BLOCK_BYTES, blocks, combined, tag
from varuna_runtime.spec.errors import CheckpointRefused, ObjectMissing
from varuna_runtime.spec.manifest import ShardEntry
from varuna_runtime.store import Store

_TASK_BYTES = 8 << 20  # what a reader does before it asks for more work

Submit = Callable[[Callable[[], None]], Future[None]]


@dataclass(slots=True, kw_only=True)
class Piece:
    """Some bytes of a shard, a tensor or its header, and where they are to go."""

    name: str
    offset: int
    memory: memoryview
    tags: list[bytes] = field(default_factory=list)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Block:
    piece: Piece
    number: int
    start: int
    memory: memoryview


@contextmanager
def readers(store: Store) -> Iterator[Submit]:
    """Give threads that read; what is still queued at the end is dropped."""
    pool = ThreadPoolExecutor(store.num_readers, thread_name_prefix="checkpoint-read")
    try:
        yield pool.submit
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def begin(store: Store, key: str, pieces: Iterable[Piece], submit: Submit) -> list[Future[None]]:
    """Start to fill the pieces, which are in order of offset; each has its tags once all futures are done.

    CheckpointRefused, out of a future, when the object is missing or too short.
    """
    found: list[Future[None]] = []
    pending: list[list[_Block]] = []
    for run in _runs(pieces, store.range_bytes):
        pending.append(run)
        if sum(len(block.memory) for run in pending for block in run) >= _TASK_BYTES:
            found.append(submit(_reading(store, key, pending)))
            pending = []
    if pending:
        found.append(submit(_reading(store, key, pending)))
    return found


def check_piece(entry: ShardEntry, piece: Piece, wanted: str) -> None:
    """Refuse (CheckpointRefused) a filled piece whose checksum is not the one wanted."""
    if combined(piece.tags) != wanted:
        raise CheckpointRefused(f"{entry.key}: the checksum of {piece.name} is not the one in the manifest")


def check_shard(store: Store, entry: ShardEntry, submit: Submit) -> None:
    """Refuse (CheckpointRefused) a shard that is not that of its entry; reads a few tensors at a time."""
    try:
        _check_shard(store, entry, submit)
    except CheckpointRefused:
        if not store.distrust(entry.key):
            raise
        _check_shard(store, entry, submit)


def _check_shard(store: Store, entry: ShardEntry, submit: Submit) -> None:
    header = Piece(name="its header", offset=0, memory=memoryview(bytearray(shards.header_bytes(entry))))
    wait(begin(store, entry.key, [header], submit))
    shards.check_header(entry, header.memory)
    group: list[tuple[Piece, str]] = []
    for tensor in shards.in_order(entry):
        memory = memoryview(bytearray(tensor.num_bytes))
        group.append((Piece(name=tensor.name, offset=tensor.offset, memory=memory), tensor.checksum))
        if sum(len(piece.memory) for piece, _ in group) >= 4 * _TASK_BYTES:
            _check_group(store, entry, group, submit)
            group = []
    _check_group(store, entry, group, submit)


def wait(futures: Sequence[Future[None]]) -> None:
    """Wait for all, then raise what the first that failed raised."""
    errors = [future.exception() for future in futures]
    for error in errors:
        if error is not None:
            raise error


def _check_group(store: Store, entry: ShardEntry, group: Sequence[tuple[Piece, str]], submit: Submit) -> None:
    wait(begin(store, entry.key, [piece for piece, _ in group], submit))
    for piece, wanted in group:
        check_piece(entry, piece, wanted)


def _runs(pieces: Iterable[Piece], range_bytes: int) -> Iterator[list[_Block]]:
    """Cut pieces into blocks and yield those that follow each other in the object as one range."""
    run: list[_Block] = []
    length = stop = 0
    for piece in pieces:
        piece.tags = [b""] * max(1, -(-len(piece.memory) // BLOCK_BYTES))
        for number, memory in enumerate(blocks(piece.memory)):
            start = piece.offset + number * BLOCK_BYTES
            if run and (start != stop or length + len(memory) > range_bytes):
                yield run
                run, length = [], 0
            run.append(_Block(piece=piece, number=number, start=start, memory=memory))
            length, stop = length + len(memory), start + len(memory)
    if run:
        yield run


def _reading(store: Store, key: str, runs: Sequence[Sequence[_Block]]) -> Callable[[], None]:
    def read() -> None:
        for run in runs:
            _fill(store, key, run)
            for block in run:
                block.piece.tags[block.number] = tag(block.memory)

    return read


def _fill(store: Store, key: str, run: Sequence[_Block]) -> None:
    wanted = sum(len(block.memory) for block in run)
    try:
        got = store.read_into(key, run[0].start, [block.memory for block in run]) if wanted else 0
    except ObjectMissing as err:
        raise CheckpointRefused(f"{key}: missing") from err
    if got != wanted:
        raise CheckpointRefused(f"{key}: ends at byte {run[0].start + got}, wanted {run[0].start + wanted}")
