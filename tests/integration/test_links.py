"""Ranks as real processes over real links: the bits of the in-memory run, and prompt news of a fault."""

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
LINKS = ("tcp", "gloo")


def run_ranks(folder: Path, layout: str, **changes: Any) -> dict[int, Any]:
    """Run every rank to its end; return what each one that lived wrote down."""
    arguments = {"folder": str(folder), "layout": layout, "num_steps": NUM_STEPS, "link": "tcp"}
    arguments |= {"dies_at": {}, "raises_at": {}, **changes}
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


# 4x1 has a skip and a mask over all stages, and a tie between the ends: some tools hang on those.
@pytest.mark.parametrize(
    ("layout", "link"), [("2x2", "tcp"), ("2x2", "gloo"), ("1x3", "tcp"), ("4x1", "tcp")]
)
def test_processes_give_the_bits_of_the_in_memory_run(tmp_path: Path, layout: str, link: str) -> None:
    expected = [step.record.loss_hex for step in Fleet(toys.tied_training(), "1x1").train(NUM_STEPS).steps]
    results = run_ranks(tmp_path, layout, link=link)
    assert [results[rank]["losses"] for rank in sorted(results)] == [expected] * len(results)
    assert len({result["weights_sha256"] for result in results.values()}) == 1


@pytest.mark.parametrize("link", LINKS)
def test_a_killed_rank_makes_every_other_one_fail_with_its_loss(tmp_path: Path, link: str) -> None:
    results = run_ranks(tmp_path, "4x1", link=link, num_steps=1000, dies_at={3: 2})
    assert sorted(results) == [0, 1, 2]
    assert {(result["error"], result["peer"]) for result in results.values()} == {("PeerLost", 3)}


@pytest.mark.parametrize("link", LINKS)
def test_an_error_in_a_loss_is_what_every_rank_fails_with(tmp_path: Path, link: str) -> None:
    results = run_ranks(tmp_path, "2x2", link=link, num_steps=1000, raises_at={3: 3})
    assert {result["message"] for result in results.values()} == {"ValueError: boom in rank 3"}
    errors = {rank: (result["error"], result["peer"]) for rank, result in results.items()}
    assert errors == {3: ("ValueError", None), **dict.fromkeys((0, 1, 2), ("PeerFailed", 3))}
