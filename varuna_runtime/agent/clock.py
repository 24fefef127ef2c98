"""The only reader of clocks in the agent."""

import time


def now_s() -> float:
    """Monotonic seconds; all judgements of liveness use it."""
    return time.monotonic()


def unix_s() -> float:
    """Wall time, for deadlines that others wrote down."""
    return time.time()
