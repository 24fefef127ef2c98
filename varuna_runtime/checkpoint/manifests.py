"""Which steps of a job are durable, and making one so; bytes and checksums, never tensors (torch-free)."""

import hashlib
import math
import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, replace

from varuna_runtime.checkpoint import doubts, reading, shards
from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import CheckpointRefused, InvalidInput, ObjectExists, ObjectMissing
from varuna_runtime.spec.manifest import FORMAT, READABLE, Manifest, checkpoint_prefix, manifest_key
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.pieces import PieceName
from varuna_runtime.store import Store

_MOST_LOOKS = 5  # of a reader whose steps are deleted while it reads them
_MANIFEST = re.compile(r".*/([0-9]{12,18})/manifest\.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Why a step that has a manifest is not loaded."""

    step: int
    reason: str  # names the object


@dataclass(frozen=True, slots=True, kw_only=True)
class Scan:
    """The newest complete step, or None, and every newer one that was refused, newest first.

    No manifest but refusals means: there is state that cannot be read. Never start from initial weights then.
    """

    manifest: Manifest | None
    refusals: tuple[Refusal, ...]


def job_prefix(job: str) -> str:
    """Prefix of every checkpoint object of a job."""
    return checkpoint_prefix(job, 0).rpartition("/")[0]


def newest_complete(
    store: Store, job: str, *, verify: bool, model: ModelRecord | None = None
) -> Manifest | None:
    """Return the manifest of `scan`, for a caller that does not ask why a newer one was refused."""
    return scan(store, job, verify=verify, model=model).manifest


def scan(store: Store, job: str, *, verify: bool, model: ModelRecord | None = None) -> Scan:
    """Walk down from the highest step to the first complete one.

    `verify` also reads every shard and compares checksums; without it presence and sizes are checked.
    With `model`, a checkpoint of another model, or one that lacks a parameter, is refused too.
    Steps without a manifest are saves that did not finish; they are passed over in silence. Who saves on
    meanwhile deletes old steps: when one was refused and a newer one has come, that one is looked at.
    """
    found = _scan_once(store, job, verify=verify, model=model)
    for _ in range(_MOST_LOOKS):
        if not found.refusals or found.refusals[0].step == _newest_listed(store, job):
            break
        found = _scan_once(store, job, verify=verify, model=model)
    return found


def _scan_once(store: Store, job: str, *, verify: bool, model: ModelRecord | None) -> Scan:
    refusals: list[Refusal] = []
    sizes = store.sizes(job_prefix(job))
    for step in reversed(steps_listed(job, sizes)):
        found = _examine(store, job, step, sizes, verify=verify, model=model)
        if isinstance(found, Manifest):
            return Scan(manifest=found, refusals=tuple(refusals))
        refusals.append(found)
    return Scan(manifest=None, refusals=tuple(refusals))


def _newest_listed(store: Store, job: str) -> int | None:
    return max(steps_listed(job, store.list(job_prefix(job))), default=None)


def complete_steps(store: Store, job: str) -> tuple[int, ...]:
    """Return the steps whose manifest parses and whose shards are there in full size, ascending."""
    sizes = store.sizes(job_prefix(job))
    found = ((s, _examine(store, job, s, sizes, verify=False, model=None)) for s in steps_listed(job, sizes))
    return tuple(step for step, outcome in found if isinstance(outcome, Manifest))


def read_manifest(store: Store, job: str, step: int) -> Manifest:
    """Return the manifest of a step, itself checked but not its shards; CheckpointRefused."""
    key = manifest_key(job, step)
    try:
        if (num_bytes := store.size(key)) > doubts.LIMIT_BYTES:
            raise CheckpointRefused(f"{key}: {num_bytes} bytes, wanted at most {doubts.LIMIT_BYTES}")
        text = store.get(key)
        manifest = canonical.loads(Manifest, text)
    except ObjectMissing as err:
        raise CheckpointRefused(f"{key}: there is none") from err
    except InvalidInput as err:
        raise CheckpointRefused(f"{key}: does not parse") from err
    if manifest.format not in READABLE:
        raise CheckpointRefused(f"{key}: format {manifest.format}, this version reads {FORMAT}")
    if (manifest.job, manifest.step, manifest.trainer.step) != (job, step, step):
        steps = f"step {manifest.step}, trainer step {manifest.trainer.step}"
        raise CheckpointRefused(f"{key}: is of job {manifest.job[:80]}, {steps}")
    if reason := doubts.doubt(manifest):
        raise CheckpointRefused(f"{key}: {reason}")
    if manifest.format != 1 and _digest_of(text, manifest.sha256) != manifest.sha256:
        raise CheckpointRefused(f"{key}: its own checksum is not that of its content")
    return manifest


def sealed(manifest: Manifest) -> Manifest:
    """Return the manifest with the checksum of its content, as `commit` puts it."""
    return replace(manifest, sha256=canonical.digest(replace(manifest, sha256="")))


def _digest_of(text: bytes, sha256: str) -> str:
    """Return the checksum of a manifest as it was written: by a version that had fewer fields, too."""
    return hashlib.sha256(text.replace(f'"sha256":"{sha256}"'.encode(), b'"sha256":""', 1)).hexdigest()


def check_shards(store: Store, manifest: Manifest) -> None:
    """Read every shard and compare it with the manifest; CheckpointRefused naming the first bad one."""
    check_sizes(manifest, store.sizes(checkpoint_prefix(manifest.job, manifest.step)))
    with reading.readers(store) as submit:
        for entry in manifest.shards:
            if not entry.sha256:
                reading.check_shard(store, entry, submit)
                continue
            try:
                shards.check(entry, store.get(entry.key))
            except ObjectMissing as err:
                raise CheckpointRefused(f"{entry.key}: missing") from err


def check_model(manifest: Manifest, model: ModelRecord) -> None:
    """Refuse (CheckpointRefused) a checkpoint of another model, or without a parameter or part of a state."""
    where = manifest_key(manifest.job, manifest.step)
    if manifest.model_hash != model.hash():
        raise CheckpointRefused(f"{where}: is of model {manifest.model_hash[:12]}, not {model.hash()[:12]}")
    held = {
        (entry.segment, tensor.name, tensor.shape, tensor.dtype)
        for entry in manifest.shards
        for tensor in entry.tensors
    }
    for segment in model.segments:
        for record in segment.tensors:
            wanted = (segment.index, f"param:{record.name}", record.shape, record.dtype)
            if not record.is_buffer and wanted not in held:
                raise CheckpointRefused(f"{where}: lacks {record.name} of segment {segment.index}")
    _check_pieces(manifest, where)


def _check_pieces(manifest: Manifest, where: str) -> None:
    """Refuse state that replicas held in shares unless they make a whole, each element once."""
    tensors = [tensor for entry in manifest.shards for tensor in entry.tensors]
    pieces = [(PieceName.of(tensor.name), math.prod(tensor.shape)) for tensor in tensors]
    sizes = {piece.whole: size for piece, size in pieces if piece.whole.startswith("param:")}
    reached: dict[str, int] = {}
    slices = [(piece.whole, piece.start, size) for piece, size in pieces if piece.start is not None]
    for name, start, size in sorted(slices):
        if reached.setdefault(name, 0) != start:
            raise CheckpointRefused(f"{where}: holds {name} in parts that do not meet at element {start}")
        reached[name] += size
    for name, num_elements in reached.items():
        owner = name.partition(":")[2].rpartition(":")[0]
        if num_elements != sizes.get(f"param:{owner}"):
            raise CheckpointRefused(f"{where}: holds only a part of {name}")
    wholes = Counter(piece.whole for piece, _ in pieces if piece.start is None)
    for name, count in wholes.items():
        if count > 1 or name in reached:
            raise CheckpointRefused(f"{where}: holds {name} twice")


def commit(store: Store, manifest: Manifest) -> Manifest:
    """Make the step durable and return its manifest: ours, or the one another generation put before.

    A step is durable once; both hold equal bits (contract E6). An older manifest that turns out not to be
    loadable never made the step durable, so ours takes its place. Idempotent. CheckpointRefused when a shard
    of ours is not in the store.
    """
    manifest = sealed(manifest)
    check_sizes(manifest, store.sizes(checkpoint_prefix(manifest.job, manifest.step)))
    key, data = manifest_key(manifest.job, manifest.step), canonical.dumps(manifest)
    if len(data) > doubts.LIMIT_BYTES:
        raise CheckpointRefused(f"{key}: {len(data)} bytes, wanted at most {doubts.LIMIT_BYTES}")
    try:
        store.put_if_absent(key, data)
    except ObjectExists:
        try:
            existing = read_manifest(store, manifest.job, manifest.step)
            if existing != manifest:
                check_shards(store, existing)
        except CheckpointRefused:
            store.put(key, data)
        else:
            return existing
    return manifest


def check_sizes(manifest: Manifest, sizes: dict[str, int]) -> None:
    """Refuse (CheckpointRefused) a manifest that names shards not listed, or listed with another size."""
    for entry in manifest.shards:
        if entry.key not in sizes:
            raise CheckpointRefused(f"{entry.key}: missing")
        if sizes[entry.key] != entry.num_bytes:
            raise CheckpointRefused(f"{entry.key}: {sizes[entry.key]} bytes, wanted {entry.num_bytes}")


def _examine(
    store: Store, job: str, step: int, sizes: dict[str, int], *, verify: bool, model: ModelRecord | None
) -> Manifest | Refusal:
    try:
        manifest = read_manifest(store, job, step)
        check_sizes(manifest, sizes)
        if model is not None:
            check_model(manifest, model)
        if verify:
            check_shards(store, manifest)
    except CheckpointRefused as err:
        return Refusal(step=step, reason=str(err))
    return manifest


def steps_listed(job: str, keys: Iterable[str]) -> tuple[int, ...]:
    """Return the steps that have a manifest among these keys of a job, ascending."""
    found = {int(match[1]): key for key in keys if (match := _MANIFEST.fullmatch(key))}
    return tuple(sorted(step for step, key in found.items() if key == manifest_key(job, step)))
