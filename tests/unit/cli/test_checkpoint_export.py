"""Where an export cannot go."""

from pathlib import Path

import pytest

from tests.support.checkpoints import saved
from varuna_manager.cli.root import run
from varuna_runtime.store import open_store


@pytest.fixture
def url(tmp_path: Path) -> str:
    url = f"file://{tmp_path}/store"
    saved(open_store(url), 10)
    return url


def exported(url: str, path: Path, kind: str) -> int:
    return run(["checkpoint", "export", "job", "--store", url, "--to", str(path), "--format", kind])


@pytest.mark.parametrize("kind", ["safetensors", "torch"])
def test_a_place_that_cannot_be_written_is_told_in_one_line(
    kind: str, url: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "file").write_text("in the way")
    assert exported(url, tmp_path / "file" / "out", kind) == 1
    told = capsys.readouterr().err
    assert told.startswith(f"varuna: {tmp_path}/file/out cannot be written: ")
    assert told.count("\n") == 1


def test_an_empty_folder_is_room_for_files_but_not_for_one_file(url: str, tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    assert exported(url, tmp_path / "out", "torch") == 1
    assert exported(url, tmp_path / "out", "safetensors") == 0
    assert (tmp_path / "out" / "model.safetensors").is_file()
