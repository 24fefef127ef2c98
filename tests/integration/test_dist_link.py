"""Ranks as real processes over gloo: the bits of the in-memory run, and prompt news of a lost peer."""

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from tests.support import toys
from tests.support.fleet import Fleet

ROOT = Path(__file__).parents[2]
NUM_STEPS = 3


def run_ranks(
    folder: Path, layout: str, *, num_steps: int = NUM_STEPS, dies_at: dict[int, int] | None = None
) -> dict[int, Any]:
    """Run every rank to its end; return what each one that lived wrote down."""
    arguments = {"folder": str(folder), "layout": layout, "num_steps": num_steps, "dies_at": dies_at or {}}
    command = [sys.executable, "-m", "tests.support.rank_main", json.dumps(arguments)]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        try:
            assert process.wait(timeout=100) == 0
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    return {
        int(file.stem.removeprefix("result")): json.loads(file.read_text())
        for file in folder.glob("result*.json")
    }


@pytest.mark.parametrize("layout", ["2x2", "1x3"])
def test_processes_give_the_bits_of_the_in_memory_run(tmp_path: Path, layout: str) -> None:
    expected = [step.record.loss_hex for step in Fleet(toys.tied_training(), "1x1").train(NUM_STEPS).steps]
    results = run_ranks(tmp_path, layout)
    assert [results[rank]["losses"] for rank in sorted(results)] == [expected] * len(results)
    assert len({result["weights_sha256"] for result in results.values()}) == 1


def test_a_killed_rank_makes_every_other_one_fail_with_peer_lost(tmp_path: Path) -> None:
    results = run_ranks(tmp_path, "2x2", num_steps=1000, dies_at={3: 2})
    assert sorted(results) == [0, 1, 2]
    assert all("lost" in result for result in results.values())
