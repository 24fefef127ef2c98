"""The only module of the manager that reads a clock."""

import time


class Clock:
    """Unix seconds that never jump: the wall clock is read once, progress is monotonic.

    `not_before_s` is the last time the journal knows, so that a wall clock set back between two
    manager processes cannot order new events before old ones.
    """

    def __init__(self, not_before_s: float = 0.0) -> None:
        self._anchor_s = max(time.time(), not_before_s) - time.monotonic()

    def now_s(self) -> float:
        """Return the present time."""
        return self._anchor_s + time.monotonic()


def monotonic_s() -> float:
    """Return seconds that never jump, for time-outs within this process."""
    return time.monotonic()


def wall_s() -> float:
    """Return the wall clock; for deadlines that another process of this machine reads."""
    return time.time()
