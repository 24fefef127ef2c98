"""A disk of the node before a store behind a network: shards lie there too, and are read there first.

What is durable is so in the store behind. A nearer copy is never synced and never believed: whoever reads
it compares checksums, and calls `distrust` where they differ.
"""

import contextlib
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from varuna_runtime.spec.errors import StoreError
from varuna_runtime.store.local import FileStore
from varuna_runtime.store.retrying import RetryingStore
from varuna_runtime.store.seam import Store

_SHARD = re.compile(r"jobs/(?P<job>[^/]+)/checkpoints/(?P<step>\d+)/.+\.safetensors")
_NUM_STEPS = 2  # of each job
_NUM_JOBS = 2


class TieredStore(RetryingStore):
    """A Store that keeps this node's shards of the newest steps in a folder, as far as there is room."""

    def __init__(self, behind: Store, folder: Path) -> None:
        super().__init__(behind)
        self._folder = folder
        self._near: FileStore | None = None
        with contextlib.suppress(StoreError):  # a disk that is full or read-only costs speed only
            self._near = FileStore(folder)

    def put(self, key: str, data: bytes | memoryview) -> None:
        """See Store; returns when the store behind has it."""
        if self._near is not None and (match := _SHARD.fullmatch(key)):
            with contextlib.suppress(OSError, StoreError):  # likewise
                self._make_room(match["job"], match["step"])
                self._near.put_unsynced(key, data)
        super().put(key, data)

    def read_into(self, key: str, start: int, into: Sequence[memoryview]) -> int:
        """See Store."""
        if self._near is not None and _SHARD.fullmatch(key):
            with contextlib.suppress(StoreError):
                if (got := self._near.read_into(key, start, into)) == sum(map(len, into)):
                    return got
        return super().read_into(key, start, into)

    def distrust(self, key: str) -> bool:
        """See Store."""
        path = self._folder / key
        was_there = path.exists()
        path.unlink(missing_ok=True)
        return was_there or super().distrust(key)

    def _make_room(self, job: str, step: str) -> None:
        """Drop all but the step before of the job, and all but the latest other job.

        Steps beyond this one are of a past that was gone back behind.
        """
        jobs = self._folder / "jobs"
        if not jobs.is_dir():
            return
        others = sorted((p for p in jobs.iterdir() if p.name != job), key=lambda p: p.stat().st_mtime)
        steps = jobs / job / "checkpoints"
        found = sorted(steps.iterdir()) if steps.is_dir() else []
        older = [path for path in found if path.name < step]
        newer = [path for path in found if path.name > step]
        for path in (*others[: 1 - _NUM_JOBS], *older[: 1 - _NUM_STEPS], *newer):
            shutil.rmtree(path, ignore_errors=True)
