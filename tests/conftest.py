"""What every tier needs."""

import signal
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session", autouse=True)
def heeded_signals() -> Iterator[None]:
    """Heed SIGINT and SIGHUP: shells and nohup start programs, and so their children, that ignore them."""
    defaults = {signal.SIGINT: signal.default_int_handler, signal.SIGHUP: signal.SIG_DFL}
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a run told to end cleans up, too
    ignored = [number for number in defaults if signal.getsignal(number) is signal.SIG_IGN]
    for number in ignored:
        signal.signal(number, defaults[number])
    yield
    for number in ignored:
        signal.signal(number, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
