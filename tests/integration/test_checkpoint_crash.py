"""SIGKILL at byte offsets of a save and between its steps: what is then loaded is always one whole step."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.checkpoints import equal, model_record, saved, state
from tests.support.clouds.moto import IDENTITY, Moto
from tests.support.dying_writer import FIRST, SECOND
from varuna_runtime.checkpoint import scan
from varuna_runtime.checkpoint.tensors import load_segments
from varuna_runtime.store import Store, open_store

NUM_OFFSETS = 50
EVERY = 100_000


def killed_writers(folder: Path, url: str, num_offsets: int, **cloud: str) -> list[str]:
    """Kill a writer at each point, leaving stores url/0, url/1, ...; return the points' names."""
    command = [sys.executable, "-m", "tests.support.dying_writer", str(folder), url, str(num_offsets)]
    subprocess.run(command, check=True, timeout=1000, env={**os.environ, **cloud})
    return (folder / "points").read_text().splitlines()


def step_loaded(store: Store, point: str) -> int:
    """The step that is loaded after the kill, whole and bit by bit."""
    model = model_record()
    found = scan(store, "job", verify=True, model=model)
    assert found.refusals == (), point
    assert found.manifest is not None, point
    assert equal(load_segments(store, found.manifest, [0, 1], "cpu"), state(model, found.manifest.step)), (
        point
    )
    return found.manifest.step


def check(steps: list[int], points: list[str]) -> None:
    """The first step is loaded up to the commit of the second, and from then on the second."""
    (commit,) = [i for i, p in enumerate(points) if p.endswith("manifest.json") and is_commit(p)]
    assert steps == [FIRST] * commit + [SECOND] * (len(points) - commit)


def is_commit(point: str) -> bool:
    """Whether the point comes right after the manifest got its name."""
    return " placed " in point or " after commit " in point


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("killed")


@pytest.fixture(scope="module")
def points(folder: Path) -> list[str]:
    return killed_writers(folder, folder.as_uri(), NUM_OFFSETS)


@pytest.fixture(scope="module")
def bucket() -> Iterator[Moto]:
    with Moto() as server:
        server.client("s3").create_bucket(Bucket="killed")
        yield server


def test_t14_after_a_kill_the_newest_complete_step_is_loaded(folder: Path, points: list[str]) -> None:
    assert sum(point.endswith(" bytes") for point in points) == NUM_OFFSETS
    assert sum("deleted" in point for point in points) >= 3
    check([step_loaded(open_store(f"file://{folder}/{i}"), p) for i, p in enumerate(points)], points)


def test_t14_after_a_kill_between_two_requests_to_s3_the_newest_complete_step_is_loaded(
    bucket: Moto, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cloud = {**IDENTITY, "AWS_ENDPOINT_URL": bucket.url, "AWS_ALLOW_HTTP": "true"}
    points = killed_writers(tmp_path, "s3://killed", 0, **cloud)
    for name, value in cloud.items():
        monkeypatch.setenv(name, value)
    check([step_loaded(open_store(f"s3://killed/{i}"), p) for i, p in enumerate(points)], points)


@pytest.mark.cases
def test_t14_after_a_kill_at_every_offset_the_newest_complete_step_is_loaded(tmp_path: Path) -> None:
    points = killed_writers(tmp_path, tmp_path.as_uri(), EVERY)
    check([step_loaded(open_store(f"file://{tmp_path}/{i}"), p) for i, p in enumerate(points)], points)


@pytest.mark.parametrize("share", [0.02, 0.5, 1.0])
def test_a_later_generation_saves_over_what_was_left_and_cleans_it_up(
    folder: Path, points: list[str], share: float, tmp_path: Path
) -> None:
    point = round(share * (len(points) - 1))
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
