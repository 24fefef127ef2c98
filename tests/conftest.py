"""What every tier needs."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def ctrl_c() -> Iterator[None]:
    """A shell's background jobs ignore SIGINT, and hand that on to what they start: ctrl-C must work here."""
    before = signal.getsignal(signal.SIGINT)
    if before is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)
