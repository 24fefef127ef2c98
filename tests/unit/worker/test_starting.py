from collections.abc import Iterable

import pytest

from tests.support import toys
from tests.support.copies import KeptFleet, MemoryVault
from tests.support.fleet import Fleet
from varuna_runtime.spec.copies import Version
from varuna_runtime.spec.errors import CheckpointRefused, StoreError
from varuna_runtime.worker.starting import Start
from varuna_runtime.worker.tiers import Copies


class FakeStored:
    """Durable steps; `touched` is what was asked of the store."""

    def __init__(self, steps: Iterable[int] = (), *, is_away: bool = False) -> None:
        self._steps = tuple(steps)
        self._is_away = is_away
        self.touched: list[str] = []

    def load_newest(self, resume_step: int | None) -> int:
        self._touch("newest")
        if resume_step and not self._steps:
            raise CheckpointRefused("there was one")
        return max(self._steps, default=0)

    def load_step(self, step: int) -> None:
        self._touch(f"step {step}")

    def steps(self) -> tuple[int, ...]:
        self._touch("steps")
        return self._steps

    def _touch(self, what: str) -> None:
        self.touched.append(what)
        if self._is_away:
            raise StoreError("it is away")


def started(
    stored: FakeStored, vault: MemoryVault | None, resume_step: int | None, *, num_kept: int = 3
) -> tuple[Start, Fleet]:
    """A rank that may find copies of the last two of so many steps."""
    if vault is not None:
        KeptFleet(Fleet(toys.mlp_training(), "1x1"), [vault], generation=4).train(num_kept)
    fleet = Fleet(toys.mlp_training(), "1x1")
    (engine,) = fleet.engines
    copies = Copies(vault, [], engine.needed_segments)
    copies.look(60.0)
    start = Start(engine, stored, copies, resume_step=resume_step)
    start.load_newest()
    return start, fleet


def test_the_store_is_not_touched_where_memory_is_at_least_as_new() -> None:
    stored = FakeStored([2], is_away=True)
    start, fleet = started(stored, MemoryVault(), 2)
    assert start.loaded == Version(step=3, generation=4)
    assert fleet.engines[0].step == 3
    assert start.loadable == (
        Version(step=3, generation=4),
        Version(step=2, generation=4),
        Version(step=2, generation=0),
    )
    assert stored.touched == []


def test_what_is_durable_is_never_gone_back_behind() -> None:
    stored = FakeStored([2, 7])
    start, _ = started(stored, MemoryVault(), 7)
    assert start.loaded == Version(step=7, generation=0)
    assert start.loadable == (Version(step=7, generation=0), Version(step=2, generation=0))


def test_t9_initial_weights_are_offered_only_where_nothing_is_durable() -> None:
    start, _ = started(FakeStored(), None, None)
    assert (start.loaded, start.loadable) == (Version(step=0, generation=0), (Version(step=0, generation=0),))
    with pytest.raises(CheckpointRefused):
        started(FakeStored(), None, 5)


def test_a_rank_with_copies_offers_what_a_rank_without_finds_in_a_store_the_manager_knows_nothing_of() -> (
    None
):
    start, _ = started(FakeStored([2]), MemoryVault(), None)
    assert start.loadable[-1] == Version(step=2, generation=0)
    start, _ = started(FakeStored(), MemoryVault(), None)
    assert start.loadable[-1] == Version(step=0, generation=0)


def test_copies_are_enough_while_the_store_is_away_and_nothing_is_known_of_it() -> None:
    start, _ = started(FakeStored(is_away=True), MemoryVault(), None)
    assert start.loadable == (Version(step=3, generation=4), Version(step=2, generation=4))


def test_a_version_whose_donor_dies_is_followed_by_the_next_place() -> None:
    vault = MemoryVault()
    vault.lost_after = 2
    stored = FakeStored()
    start, _ = started(stored, vault, None)
    assert start.loaded == Version(step=0, generation=0)
    assert stored.touched == ["newest"]


def test_the_version_that_all_ranks_start_from_is_loaded_wherever_it_is() -> None:
    stored = FakeStored([2])
    start, fleet = started(stored, MemoryVault(), 2)
    start.load(Version(step=2, generation=4))
    assert (start.loaded.step, fleet.engines[0].step) == (2, 2)
    start.load(Version(step=2, generation=0))
    assert stored.touched == ["step 2"]
