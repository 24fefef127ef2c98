"""Runs drawn combinations as real processes and compares what they wrote with the plain loop."""

import os
import signal
import subprocess
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tests.support.combinations import Examples
from tests.support.fleet import joined
from tests.support.truth import difference_of, missing_from
from varuna_runtime.spec.pieces import PieceName

ROOT = Path(__file__).parents[2]


def run_all(folder: Path, seeds: Sequence[int], *, timeout_s: float) -> None:
    """Run the combinations of `seeds` one after the other; nothing of them is left afterwards."""
    command = [sys.executable, "-m", "tests.support.combination_main", str(folder), *map(str, seeds)]
    with subprocess.Popen(command, cwd=ROOT, start_new_session=True) as process:
        try:
            process.wait(timeout=timeout_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)


def faults(folder: Path, seed: int, examples: Examples) -> list[str]:
    """Return what went wrong on any rank, or differs from the plain loop on any replica."""
    drawn = examples.drawn(seed)
    failed = [file.read_text() for file in sorted(folder.glob(f"{seed}.*.failed"))]
    if failed:
        return failed
    truth = examples.truth(drawn.model, drawn.batch, drawn.precision)
    found: list[str] = []
    seen: dict[str, Tensor] = {}
    for rank in range(len(drawn.stages) * drawn.replicas):
        file = folder / f"{seed}.{rank}"
        if not file.exists():
            return [f"rank {rank} left no result"]
        result: dict[str, Any] = torch.load(file)
        whole = {n: t for n, t in result["tensors"].items() if not PieceName.of(n).is_alone}
        found += [f"rank {rank}: {line}" for line in difference_of(result["losses"], whole, truth)]
        seen |= result["tensors"]
    together = joined(seen)
    return found + difference_of(truth.losses, together, truth) + missing_from(together, truth)
