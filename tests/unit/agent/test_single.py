"""A node's folder has one agent."""

import os
from pathlib import Path

import pytest

from varuna_runtime.agent import single
from varuna_runtime.spec.errors import Conflict, InvalidInput


def test_the_lock_names_who_has_it_and_ends_with_it(tmp_path: Path) -> None:
    with single.hold(tmp_path / "n1"), pytest.raises(Conflict, match=f"pid {os.getpid()}, which runs"):
        single.hold(tmp_path / "n1")
    single.hold(tmp_path / "n1").close()


def test_a_folder_that_cannot_be_made_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InvalidInput, match=r"file/n1 cannot be written .*--home"):
        single.hold(tmp_path / "file" / "n1")
