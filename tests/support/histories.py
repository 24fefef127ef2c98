"""What the tiny job comes to when nothing happens to it, and the state that a job left."""

import json
import os
import pathlib
import subprocess
import sys
from dataclasses import dataclass

from tests.support.pool import Pool, copy_job
from varuna_runtime.checkpoint import read_manifest
from varuna_runtime.checkpoint.tensors import load_segments
from varuna_runtime.store import open_store

STEPS = 120


@dataclass(frozen=True)
class Truth:
    """What an undisturbed run on one process gives."""

    weights_sha256: str
    losses: tuple[str, ...]


def undisturbed(folder: pathlib.Path) -> Truth:
    """Train the tiny job alone, without manager or agents."""
    job = copy_job("tiny", folder / "alone")
    result = folder / "result.json"
    env = {**os.environ, "VARUNA_JOB": str(job / "job.yaml"), "RESULT_FILE": str(result)}
    subprocess.run([sys.executable, "train.py"], cwd=job, env=env, check=True, timeout=300)
    answer = json.loads(result.read_text())
    return Truth(weights_sha256=answer["weights_sha256"], losses=tuple(answer["losses"]))


def final_state(lent: Pool, job: str) -> dict[str, bytes]:
    """Return every tensor of the last checkpoint, optimizer state included, as bytes by name."""
    store = open_store(f"file://{lent.home}/store")
    manifest = read_manifest(store, job, STEPS)
    segments = sorted({shard.segment for shard in manifest.shards})
    loaded = load_segments(store, manifest, segments, "cpu")
    return {
        name: tensor.contiguous().view(-1).numpy().tobytes()
        for tensors in loaded.values()
        for name, tensor in tensors.items()
    }
