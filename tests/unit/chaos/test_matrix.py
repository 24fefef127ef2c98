"""Hands of faults and the table of what was done."""

import pytest

from tests.support.chaos.matrix import CELLS, Done, Kind, Phase, Site, cells_of, hand, table


@pytest.mark.parametrize("site", Site)
def test_a_seed_gets_the_same_hand_every_time(site: Site) -> None:
    assert hand(17, site, 20) == hand(17, site, 20)


@pytest.mark.parametrize("site", Site)
def test_four_seeds_of_a_site_have_all_that_can_be_done_there(site: Site) -> None:
    first = 100 if site is Site.DISK else 101
    dealt = {cell for seed in range(first, first + 8, 2) for cell in hand(seed, site, 26)}
    assert dealt == set(cells_of(site))


def test_a_small_hand_is_not_of_one_kind() -> None:
    assert len({cell.kind for cell in hand(0, Site.DISK, 6)}) > 3


def test_both_sites_together_have_the_whole_matrix() -> None:
    assert set(cells_of(Site.DISK)) | set(cells_of(Site.S3)) == set(CELLS)


def test_the_table_counts_kinds_phases_and_all() -> None:
    done = [Done(kind=Kind.SIGKILL, phase=Phase.STEP, target="worker", at_s=0.0)] * 3
    rows = table(done).splitlines()
    assert rows[1].split() == ["SIGKILL", "0", "0", "0", "3", "0", "0", "3"]
    assert rows[-1].split() == ["all", "0", "0", "0", "3", "0", "0", "3"]
