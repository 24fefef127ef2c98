"""Reading a stream in its own order, from a cursor that can be kept in a checkpoint."""

import json
from collections.abc import Iterator
from typing import Any

from varuna_runtime.partition.seeding import seed_everything
from varuna_runtime.spec import rng
from varuna_runtime.spec.errors import InvalidInput


class StreamReader:
    """Reads forward from the last committed place; asking for an earlier one reads again from there.

    `dataset.open(cursor)` yields (sample, next_cursor); the first cursor is None. Each sample is produced
    under a key of its place, so that a stream that draws random numbers gives the same on every rank.
    """

    def __init__(self, dataset: Any, seed: int) -> None:
        self._dataset = dataset
        self._seed = seed
        self._committed = 0  # place where the next uncommitted step starts
        self._known = {0: "null"}  # JSON cursors of places worth going back to
        self._iterator: Iterator[Any] = iter(())
        self._position = -1  # of the iterator; before the first place: not open
        self._here = "null"  # JSON cursor at the iterator's position

    def read(self, positions: range) -> list[Any]:
        """Return the samples at `positions`; those before them that no one read are dropped."""
        self._go_to(positions.start)
        return [self._next() for _ in positions]

    def commit(self, position: int) -> None:
        """Promise never to ask for anything before `position` again."""
        self._committed = position
        self._note()

    def cursor(self) -> str:
        """Return the committed place as JSON, reading up to it if need be."""
        if self._committed not in self._known:
            self._go_to(self._committed)
            self._note()
        return json.dumps({"position": self._committed, "cursor": json.loads(self._known[self._committed])})

    def restore(self, cursor: str) -> None:
        """Continue from a place that `cursor` described."""
        if not cursor:
            raise InvalidInput("the checkpoint has no stream cursor: it was made with a map-style data set")
        place = json.loads(cursor)
        self._committed = place["position"]
        self._known = {self._committed: json.dumps(place["cursor"])}
        self._position = -1

    def _go_to(self, position: int) -> None:
        if not 0 <= self._position <= position:
            start = max(place for place in self._known if place <= position)
            self._here = self._known[start]
            self._iterator = iter(self._dataset.open(json.loads(self._here)))
            self._position = start
        while self._position < position:
            self._next()

    def _next(self) -> Any:
        seed_everything(rng.sample_key(seed=self._seed, epoch=0, sample=self._position))
        item = next(self._iterator, None)
        if item is None:
            raise InvalidInput(
                f"dataset: the stream ended after {self._position} samples, before the training did; "
                "let it start over by itself, or train for fewer steps"
            )
        if not isinstance(item, tuple) or len(item) != 2:
            raise InvalidInput(f"dataset: open() gave {type(item).__name__}, wanted (sample, next_cursor)")
        sample, cursor = item
        self._position += 1
        self._here = _as_json(cursor)
        self._note()
        return sample

    def _note(self) -> None:
        """Remember the cursor when the iterator stands at the committed place; forget older ones."""
        if self._position == self._committed:
            self._known = {self._committed: self._here}


def _as_json(cursor: Any) -> str:
    try:
        return json.dumps(cursor)
    except (TypeError, ValueError) as err:
        raise InvalidInput(f"dataset: cursor {cursor!r} is not JSON: {err}") from err
