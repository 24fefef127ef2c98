"""The jobs that are trained on the clouds' doubles, and what undisturbed runs of them give."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.clouds.e2e import Truth, undisturbed
from tests.support.pool import copy_job

EXAMPLE = Path(__file__).parents[3] / "examples" / "gpt"


def gpt_job(folder: Path, **changes: str) -> Path:
    """Copy the GPT example with the script that paces it."""
    copied = copy_job("paced_gpt", folder, **changes)
    for path in EXAMPLE.glob("*.py"):
        shutil.copy(path, copied)
    return copied


def tiny_job(folder: Path, **changes: str) -> Path:
    """Copy the tiny job."""
    return copy_job("tiny", folder, **changes)


@pytest.fixture(scope="session")
def gpt() -> Callable[..., Path]:
    return gpt_job


@pytest.fixture(scope="session")
def tiny() -> Callable[..., Path]:
    return tiny_job


@pytest.fixture(scope="session")
def gpt_truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """The bits an undisturbed process arrives at."""
    return undisturbed(gpt_job(tmp_path_factory.mktemp("truth") / "gpt"))


@pytest.fixture(scope="session")
def tiny_truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """The bits an undisturbed process arrives at."""
    return undisturbed(tiny_job(tmp_path_factory.mktemp("truth") / "tiny"))
