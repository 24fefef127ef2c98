"""A state home has one manager."""

import os
from pathlib import Path

import pytest

from varuna_manager import serving, single
from varuna_manager.cloud import processes
from varuna_manager.home import Home
from varuna_runtime.spec.errors import Conflict, InvalidInput


def test_the_lock_is_exclusive_names_its_owner_and_ends_with_it(tmp_path: Path) -> None:
    path = tmp_path / "manager" / "lock"
    with single.hold(path), pytest.raises(Conflict, match=f"pid {os.getpid()};"):
        single.hold(path)
    single.hold(path).close()


def test_a_home_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match=r"home: .*file/manager cannot be written .*VARUNA_HOME"):
        single.hold(tmp_path / "file" / "manager" / "lock")


def test_a_serving_manager_is_told_from_a_dead_one(tmp_path: Path) -> None:
    home = Home(tmp_path)
    assert serving.read(home) is None
    here = serving.Serving(address="127.0.0.1:1", epoch=3, process=processes.own())
    serving.write(home, here)
    found = serving.read(home)
    assert found == here
    assert found is not None
    assert found.is_alive
