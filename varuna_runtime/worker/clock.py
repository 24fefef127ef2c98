"""The only reader of clocks in a worker."""

import time


def now_s() -> float:
    """Monotonic seconds, fine enough to time one operation."""
    return time.perf_counter()


def busy_s() -> float:
    """Seconds that this thread had a processor, whatever else the machine did meanwhile."""
    return time.thread_time()


def unix_s() -> float:
    """Unix seconds, for what people read later."""
    return time.time()
