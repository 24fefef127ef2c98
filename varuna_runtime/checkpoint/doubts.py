"""What cannot be true of a manifest, whatever lies in the store; pure and torch-free."""

import json
import math
import re
from collections.abc import Iterator

from varuna_runtime.checkpoint.headers import LIMIT_BYTES as HEADER_LIMIT_BYTES
from varuna_runtime.checkpoint.headers import LONGEST_NAME, size_of
from varuna_runtime.checkpoint.shards import header_bytes, in_order
from varuna_runtime.spec.errors import CheckpointRefused
from varuna_runtime.spec.manifest import Manifest, ShardEntry, TrainerState, checkpoint_prefix

LIMIT_BYTES = 64 * 2**20  # of a manifest; one of 100,000 tensors has a quarter of it
_CHECKSUM = re.compile(r"[0-9a-f]{32}")
_SHA256 = re.compile(r"[0-9a-f]{64}")
_PART = re.compile(r"[0-9]{3,9}\.safetensors")


def doubt(manifest: Manifest) -> str:
    """Return what is wrong with a manifest taken by itself, or nothing."""
    return next(_doubts(manifest), "")


def _doubts(manifest: Manifest) -> Iterator[str]:
    if manifest.generation < 0:
        yield f"is of generation {manifest.generation}"
    keys: set[str] = set()
    names: set[str] = set()
    for entry in manifest.shards:
        if not _is_own(manifest, entry):
            yield f"names {entry.key[:200]!r}, which is not of its step and generation"
        if entry.key in keys:
            yield f"names {entry.key} twice"
        keys.add(entry.key)
        if reason := _shard_doubt(entry) or _checksum_doubt(manifest.format, entry):
            yield f"says of {entry.key}: {reason}"
        for tensor in entry.tensors:
            if tensor.name in names:
                yield f"holds {tensor.name} twice"
            names.add(tensor.name)
    yield from _trainer_doubts(manifest.trainer)


def _is_own(manifest: Manifest, entry: ShardEntry) -> bool:
    folder = f"{checkpoint_prefix(manifest.job, manifest.step)}/g{manifest.generation}"
    start = f"{folder}/s{entry.segment:05d}-"
    return entry.key.startswith(start) and bool(_PART.fullmatch(entry.key[len(start) :]))


def _shard_doubt(entry: ShardEntry) -> str:
    total = 8
    for tensor in entry.tensors:
        if len(tensor.name) > LONGEST_NAME:
            return "a tensor whose name never ends"
        try:
            num_bytes = size_of(tensor.dtype, tensor.shape)
        except CheckpointRefused as err:
            return f"{tensor.name}: {err}"
        if num_bytes != tensor.num_bytes:
            return f"{tensor.name} has {tensor.num_bytes} bytes, where its shape has {num_bytes}"
        total += num_bytes
    return "" if total <= entry.num_bytes else f"{entry.num_bytes} bytes hold tensors of {total}"


def _checksum_doubt(format_: int, entry: ShardEntry) -> str:
    """Format 1 has a SHA-256 of the whole; later ones say where each tensor is, and its checksum."""
    if format_ == 1:
        is_plain = not entry.checksum and not any(t.offset or t.checksum for t in entry.tensors)
        return "" if is_plain and _SHA256.fullmatch(entry.sha256) else "a checksum that is no SHA-256"
    if entry.sha256 or not all(
        map(_CHECKSUM.fullmatch, (entry.checksum, *(t.checksum for t in entry.tensors)))
    ):
        return "a checksum that is none"
    reached = header_bytes(entry)
    if not 8 <= reached <= HEADER_LIMIT_BYTES:
        return f"a header of {reached} bytes"
    for tensor in in_order(entry):
        if tensor.offset != reached:
            return f"{tensor.name} at byte {tensor.offset}, where the one before ends at {reached}"
        reached += tensor.num_bytes
    return "" if reached == entry.num_bytes else f"{entry.num_bytes} bytes hold tensors up to {reached}"


def _trainer_doubts(trainer: TrainerState) -> Iterator[str]:
    texts = [loss.loss_hex for loss in trainer.losses]
    texts += [figure.value_hex for evaluation in trainer.evaluations for figure in evaluation.figures]
    if not all(map(_is_float, texts)):
        yield "has a loss or a figure that is no number"
    if not all(map(_is_json, (trainer.optimizer_groups, trainer.scheduler, trainer.stream_cursor))):
        yield "has a state of optimizer, scheduler or data that does not parse"
    scaler = trainer.scaler
    if scaler is not None and not (math.isfinite(scaler.scale) and scaler.scale > 0):
        yield f"has a loss scale of {scaler.scale}"


def _is_float(text: str) -> bool:
    try:
        float.fromhex(text)
    except (ValueError, OverflowError):
        return False
    return True


def _is_json(text: str) -> bool:
    try:
        json.loads(text or "null")
    except (ValueError, RecursionError):
        return False
    return True
