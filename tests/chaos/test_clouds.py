"""Random histories of the clouds' doubles: `make chaos`, or `CHAOS_SEEDS=17,99 make chaos` for some."""

import os
from pathlib import Path

import pytest

from tests.support.clouds.campaign import Campaign, survive
from tests.support.clouds.e2e import Truth, on_aws, on_azure, undisturbed
from tests.support.clouds.sites import AwsSite
from tests.support.pool import copy_job

SEEDS = [int(s) for s in os.environ.get("CHAOS_SEEDS", "").split(",") if s] or list(range(200, 208))
FAULTS = 10


@pytest.fixture(scope="module")
def truth(tmp_path_factory: pytest.TempPathFactory) -> Truth:
    """The bits an undisturbed process arrives at."""
    return undisturbed(copy_job("tiny", tmp_path_factory.mktemp("truth") / "tiny"))


@pytest.mark.chaos
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("cloud", ["aws", "azure"])
def test_no_market_changes_a_bit_or_leaves_a_machine(
    cloud: str, seed: int, tmp_path: Path, truth: Truth
) -> None:
    job = copy_job("tiny", tmp_path / "job", nodes="{min: 1, max: 4}")
    opened = {"aws": on_aws, "azure": on_azure}[cloud]
    with opened(tmp_path / cloud, sizing={"boot_timeout_s": 15.0}) as here:
        proxy = here.site.market if isinstance(here.site, AwsSite) else None
        survive(here, job, truth, Campaign(here=here, seed=seed, proxy=proxy), faults=FAULTS)
