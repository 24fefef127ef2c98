"""An undisturbed training of one process, whose bits a disturbed one must have."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import torch

from benchmarks import recovery_stamps as stamps
from benchmarks.recovery_pool import Pool
from benchmarks.recovery_stamps import Stamp
from benchmarks.testbed import RankFailed

ALONE_WITHIN_S = 240.0


class Alone:
    """The same job, to a durable step of it; asked for while that step is in the store."""

    def __init__(self, pool: Pool, step: int) -> None:
        self._seen = [stamp for stamp in pool.stamps if stamp.step <= step]
        self._folder = pool.folder / f"alone-{pool.job}"
        self._theirs, self._own = self._folder / "theirs.pt", self._folder / "own.pt"
        self._stamps, self._job = self._folder / "stamps", self._folder / "job.yaml"
        shutil.copytree(pool.script, self._folder)
        pool.export(step, self._theirs)
        lines = [line for line in pool.job_file.read_text().splitlines() if not line.startswith("steps:")]
        self._job.write_text("\n".join([*lines, f"steps: {step}", ""]))

    def begin(self) -> None:
        """Start it."""
        words = {"VARUNA_JOB": str(self._job), "STAMPS": str(self._stamps), "WEIGHTS": str(self._own)}
        self._process = subprocess.Popen(
            [sys.executable, "train.py"],
            cwd=self._folder,
            env={**os.environ, **words},
            stdout=subprocess.DEVNULL,
        )

    def differing(self) -> tuple[int, int]:
        """Wait for its end; return how many steps have another loss and how many tensors other bits."""
        if self._process.wait(ALONE_WITHIN_S):
            raise RankFailed("the undisturbed run failed")
        ours, truth = stamps.losses(self._seen), stamps.losses(stamps.read(self._stamps))
        return sum(ours[step] != truth[step] for step in ours), _differing(self._theirs, self._own)


def _differing(exported: Path, saved: Path) -> int:
    theirs = torch.load(exported, weights_only=True)["model"]
    ours = torch.load(saved, weights_only=True)
    names = theirs.keys() | ours.keys()
    return sum(
        name not in theirs or name not in ours or not torch.equal(theirs[name], ours[name]) for name in names
    )


def durable_since(pool: Pool, life: int) -> bool:
    """Whether the newest durable step is one that a life made."""
    own: list[Stamp] = [stamp for stamp in pool.stamps if stamp.life == life]
    return bool(own) and pool.status().durable_step >= own[0].step
