"""A manager of its own for each test that asks for one."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.manager_process import ManagerProcess
from varuna_manager.client import Client


@pytest.fixture
def manager(tmp_path: Path) -> Iterator[ManagerProcess]:
    running = ManagerProcess(tmp_path)
    try:
        yield running.start()
    finally:
        running.kill()


@pytest.fixture
def client(manager: ManagerProcess) -> Iterator[Client]:
    with manager.client() as connected:
        yield connected
