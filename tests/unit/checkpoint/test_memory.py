"""A load needs little more memory than what it loads."""

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tests.support.checkpoints import saved
from varuna_runtime.checkpoint import commit, read_manifest
from varuna_runtime.checkpoint.shards import ShardLabel, describe
from varuna_runtime.checkpoint.tensors import encode
from varuna_runtime.store import open_store

NUM_TENSORS, NUM_ELEMENTS = 32, 1 << 20
LOAD = """
import resource, sys, torch
from varuna_runtime.checkpoint import read_manifest
from varuna_runtime.checkpoint.tensors import iter_tensors
from varuna_runtime.store import open_store

def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024

store = open_store(sys.argv[1])
manifest = read_manifest(store, "job", 2)
names = [tensor.name for tensor in manifest.shards[0].tensors]
targets = {name: torch.ones(1 << 20) for name in names} if sys.argv[2] == "targets" else {}
torch.set_num_threads(1)
before, held = peak(), []
for _, tensors in iter_tensors(store, manifest, [0], targets):
    held.append(tensors)
assert sum(len(tensors) for tensors in held) == 32
print((peak() - before) / (32 * 4 * 2**20))
"""


@pytest.mark.parametrize(("into", "most"), [("targets", 0.25), ("fresh memory", 1.25)])
def test_a_load_stays_within_a_quarter_of_what_it_loads(tmp_path: Path, into: str, most: float) -> None:
    url = f"file://{tmp_path}/store"
    store = open_store(url)
    saved(store, 1)
    label = ShardLabel(job="job", step=2, generation=1, segment=0, part=0)
    data = encode(label, {f"param:{i}": torch.full((NUM_ELEMENTS,), float(i)) for i in range(NUM_TENSORS)})
    store.put(label.key, data)
    older = read_manifest(store, "job", 1)
    trainer = replace(older.trainer, step=2)
    commit(store, replace(older, step=2, shards=(describe(data),), trainer=trainer))
    command = [sys.executable, "-c", LOAD, url, into]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) <= most
