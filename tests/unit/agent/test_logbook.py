import io
import json
import threading
from collections.abc import Iterator

import pytest
import structlog

from varuna_runtime.agent.logbook import unhurried_log


@pytest.fixture(autouse=True)
def log_as_before() -> Iterator[None]:
    yield
    structlog.reset_defaults()


class SlowFile(io.StringIO):
    """A file on a disk that stands still until it is let go; it knows who wrote to it."""

    def __init__(self) -> None:
        super().__init__()
        self.is_begun = threading.Event()
        self.is_let_go = threading.Event()
        self.writers: set[str] = set()

    def write(self, text: str) -> int:
        self.writers.add(threading.current_thread().name)
        self.is_begun.set()
        assert self.is_let_go.wait(30.0)
        return super().write(text)


class FullFile(io.StringIO):
    def write(self, text: str) -> int:
        raise OSError(28, "no space left on device")


def events(file: io.StringIO) -> list[str]:
    return [json.loads(line)["event"] for line in file.getvalue().splitlines()]


def test_who_logs_does_not_wait_for_the_disk_and_the_end_does() -> None:
    file = SlowFile()
    log = structlog.get_logger()
    with unhurried_log(file):
        log.info("one", node="a")
        log.warning("two")
        assert file.getvalue() == ""
        file.is_let_go.set()
    assert events(file) == ["one", "two"]
    assert file.writers == {"log"}
    first = json.loads(file.getvalue().splitlines()[0])
    assert (first["level"], first["node"]) == ("info", "a")


def test_lines_that_wait_are_bounded_and_lost_ones_are_told() -> None:
    file = SlowFile()
    log = structlog.get_logger()
    with unhurried_log(file, most_lines=2):
        log.info("0")
        assert file.is_begun.wait(30.0)
        for number in range(1, 6):
            log.info(str(number))
        file.is_let_go.set()
    assert events(file) == ["0", "1", "log lines lost", "2"]
    assert json.loads(file.getvalue().splitlines()[2])["num_lines"] == 3


def test_a_full_disk_ends_nothing() -> None:
    with unhurried_log(FullFile()):
        structlog.get_logger().info("one")
