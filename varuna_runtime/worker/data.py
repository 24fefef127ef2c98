"""Batches by (step, micro-batch): each sample keyed, exactly once an epoch, whatever the layout is (E1)."""

from collections.abc import Callable
from typing import Any, Protocol

from torch.utils.data import default_collate

from varuna_runtime.partition.seeding import preserved_random_state, seed_everything
from varuna_runtime.spec import rng
from varuna_runtime.spec.batches import SampleRef, micro_batch_rows, sample_refs, step_rows
from varuna_runtime.spec.errors import InvalidInput, ModelRefused
from varuna_runtime.worker.arguments import is_stream
from varuna_runtime.worker.bits import difference
from varuna_runtime.worker.stream import StreamReader
from varuna_runtime.worker.training import ResolvedTraining, Training

_LOOK_AHEAD = 512


class _Reader(Protocol):
    """Fetches samples by their place in the endless order, each under its own key."""

    def read(self, positions: range) -> list[Any]: ...

    def commit(self, position: int) -> None: ...

    def cursor(self) -> str: ...

    def restore(self, cursor: str) -> None: ...


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
        self._reader: _Reader = (
            StreamReader(dataset, seed) if is_stream(dataset) else _MapReader(dataset, seed, shuffle=shuffle)
        )
        self._collate = default_collate if collate is None else collate
        self._seed = seed
        self._batch_size = batch_size
        self._total_samples = total_samples

    @classmethod
    def of(cls, training: Training, resolved: ResolvedTraining) -> "SampleSource":
        """Return the source of a training."""
        return cls(
            training.dataset,
            collate=training.collate,
            seed=resolved.seed,
            shuffle=resolved.shuffle,
            batch_size=resolved.batch_size,
            total_samples=resolved.total_samples,
        )

    def num_samples(self, step: int) -> int:
        """Return how many samples a step has; below the batch size only in the last one."""
        return len(step_rows(step, self._batch_size, self._total_samples))

    def micro_batch(self, step: int, index: int, micro_batch_size: int) -> Any:
        """Return the collated micro-batch; the same each time.

        Of a stream, ask in ascending order: going back reads the step again from its start.
        """
        with preserved_random_state():
            return self.fetch(step, index, micro_batch_size)

    def fetch(self, step: int, index: int, micro_batch_size: int) -> Any:
        """Like `micro_batch`, but leave the random state anywhere: for callers who seed before they draw."""
        rows = step_rows(step, self._batch_size, self._total_samples)
        wanted = micro_batch_rows(len(rows), micro_batch_size, index)
        samples = self._reader.read(rows[wanted.start : wanted.stop])
        seed_everything(rng.key("collate", self._seed, step, index))
        return self._collate(samples)

    def proven_micro_batch(self, step: int, index: int, micro_batch_size: int) -> Any:
        """Like `micro_batch`, read twice; raises ModelRefused unless it is the same both times (contract E1).

        Else each rank would see other samples, and so would a step that is run again.
        """
        first, second = (self.micro_batch(step, index, micro_batch_size) for _ in range(2))
        if (where := difference(first, second)) is None:
            return second
        raise ModelRefused(
            f"dataset: micro-batch {index} of step {step} read twice is not the same (batch{where}); "
            "samples and collate may draw from the global generators of torch, numpy and random, which are "
            "seeded for each sample, but not from generators, counters or clocks of their own"
        )

    def commit(self, step: int) -> None:
        """Mark `step` as committed; costs nothing on a rank that reads no data."""
        self._reader.commit(step_rows(step, self._batch_size, self._total_samples).stop)

    def cursor(self) -> str:
        """Return where the next uncommitted step starts, as JSON; empty for a map-style data set."""
        return self._reader.cursor()

    def restore(self, cursor: str) -> None:
        """Continue from a text that `cursor` returned."""
        self._reader.restore(cursor)


class _MapReader:
    """Random access: a sample's place is a pure function of the seed, so there is nothing to remember."""

    def __init__(self, dataset: Any, seed: int, *, shuffle: bool) -> None:
        self._dataset = dataset
        self._seed = seed
        self._shuffle = shuffle
        self._ahead = range(0)  # positions whose samples are known
        self._refs: tuple[SampleRef, ...] = ()

    def read(self, positions: range) -> list[Any]:
        if positions.start < self._ahead.start or self._ahead.stop < positions.stop:
            # Shuffling costs the same for one position as for hundreds.
            self._ahead = range(positions.start, max(positions.stop, positions.start + _LOOK_AHEAD))
            self._refs = sample_refs(self._ahead, len(self._dataset), self._seed, shuffle=self._shuffle)
        first = positions.start - self._ahead.start
        return [self._fetch(ref) for ref in self._refs[first : first + len(positions)]]

    def _fetch(self, ref: SampleRef) -> Any:
        seed_everything(rng.sample_key(seed=self._seed, epoch=ref.epoch, sample=ref.sample))
        return self._dataset[ref.sample]

    def commit(self, position: int) -> None:
        pass

    def cursor(self) -> str:
        return ""

    def restore(self, cursor: str) -> None:
        if cursor:
            raise InvalidInput("the checkpoint has a stream cursor, but the data set is map-style now")
