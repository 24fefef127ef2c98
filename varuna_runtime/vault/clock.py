"""The only reader of a clock in the vault."""

import time


def now_s() -> float:
    """Return monotonic seconds."""
    return time.monotonic()
