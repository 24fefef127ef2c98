"""The only reader of clocks in a worker."""

import time


def now_s() -> float:
    """Monotonic seconds, fine enough to time one operation."""
    return time.perf_counter()


def unix_s() -> float:
    """Unix seconds, for what people read later."""
    return time.time()
