"""SIGKILL at many points of a save: what is then loaded is always one whole step."""

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.checkpoints import equal, model_record, saved, state
from tests.support.dying_writer import FIRST, SECOND
from varuna_runtime.checkpoint import scan
from varuna_runtime.checkpoint.tensors import load_segments
from varuna_runtime.store import open_store

NUM_POINTS = 40


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    command = [sys.executable, "-m", "tests.support.dying_writer", str(folder), str(NUM_POINTS)]
    subprocess.run(command, check=True, timeout=100)
    return folder


@pytest.mark.parametrize("point", range(NUM_POINTS))
def test_t14_after_a_kill_the_newest_complete_step_is_loaded(folder: Path, point: int) -> None:
    store, model = open_store(f"file://{folder}/{point}"), model_record()
    found = scan(store, "job", verify=True, model=model)
    assert found.refusals == ()
    assert found.manifest is not None
    step = found.manifest.step
    assert step in (FIRST, SECOND)
    assert equal(load_segments(store, found.manifest, [0, 1], "cpu"), state(model, step))


def test_early_kills_load_the_first_step_and_late_ones_the_second(folder: Path) -> None:
    steps = []
    for point in range(NUM_POINTS):
        manifest = scan(open_store(f"file://{folder}/{point}"), "job", verify=False).manifest
        steps.append(manifest.step if manifest else None)
    assert steps == sorted(steps, key=lambda step: step or 0)
    assert steps[0] == FIRST
    assert steps[-1] == SECOND


@pytest.mark.parametrize("point", [1, NUM_POINTS // 2, NUM_POINTS - 1])
def test_a_later_generation_saves_over_what_was_left_and_cleans_it_up(
    folder: Path, point: int, tmp_path: Path
) -> None:
    root = Path(shutil.copytree(folder / str(point), tmp_path / "store"))
    store = open_store(f"file://{root}")
    values = saved(store, SECOND, generation=2)
    newest = saved(store, 30, generation=2)
    found = scan(store, "job", verify=True, model=model_record())
    assert found.refusals == ()
    assert found.manifest is not None
    assert equal(load_segments(store, found.manifest, [0, 1], "cpu"), newest)
    assert not equal(values, newest)
    assert not list(root.rglob("*#*"))
