"""Batches by (step, micro-batch): each sample keyed, exactly once an epoch, whatever the layout is (E1)."""

from collections.abc import Callable
from typing import Any


class SampleSource:
    """Makes the micro-batches a rank asks for, from a map-style data set or a stream.

    A map-style data set has `__len__` and `__getitem__`; only the samples asked for are fetched. A stream
    has `open(cursor) -> iterator of (sample, next_cursor)` with JSON cursors, None at the very beginning;
    it is read in order and what no one asked for is dropped. Random numbers drawn by transforms and by
    `collate` (torch, numpy, random) are keyed; the process's own random state is put back.
    """

    def __init__(
        self,
        dataset: Any,
        *,
        collate: Callable[[list[Any]], Any] | None,
        seed: int,
        shuffle: bool,
        batch_size: int,
        total_samples: int | None,
    ) -> None:
        raise NotImplementedError

    def num_samples(self, step: int) -> int:
        """Return how many samples a step has; below the batch size only in the last one."""
        raise NotImplementedError(step)

    def micro_batch(self, step: int, index: int, micro_batch_size: int) -> Any:
        """Return the collated micro-batch; repeatable. Of a stream, ask in ascending order: going back re-reads."""
        raise NotImplementedError(step, index, micro_batch_size)

    def commit(self, step: int) -> None:
        """Mark `step` as committed; costs nothing on a rank that reads no data."""
        raise NotImplementedError(step)

    def cursor(self) -> str:
        """Return where the next uncommitted step starts, as JSON; empty for a map-style data set."""
        raise NotImplementedError

    def restore(self, cursor: str) -> None:
        """Continue from a text that `cursor` returned."""
        raise NotImplementedError(cursor)
