"""What happens when, in virtual time."""

import heapq
from collections.abc import Callable
from itertools import count

Call = Callable[[], None]


class Agenda:
    """Calls by time; those of one time in the order in which they were added."""

    def __init__(self) -> None:
        self._calls: list[tuple[float, int, Call]] = []
        self._serial = count()

    def add(self, at_s: float, call: Call) -> None:
        """Do `call` at a time that is not over."""
        heapq.heappush(self._calls, (at_s, next(self._serial), call))

    def next_s(self) -> float | None:
        """Return when the next call is due."""
        return self._calls[0][0] if self._calls else None

    def run_due(self, now_s: float) -> None:
        """Make all calls up to `now_s`, also those that they add."""
        while self._calls and self._calls[0][0] <= now_s:
            heapq.heappop(self._calls)[2]()
