from collections.abc import Iterable
from pathlib import Path

import pytest
import torch

from tests.support import toys
from tests.support.copies import KeptFleet, MemoryVault
from tests.support.fleet import Fleet
from tests.support.fleet_store import record_of, resumption, save
from varuna_runtime.checkpoint import read_manifest
from varuna_runtime.partition import PartitionedModel
from varuna_runtime.spec.copies import Version
from varuna_runtime.spec.errors import CheckpointRefused, StoreError
from varuna_runtime.store import Store, open_store
from varuna_runtime.worker.engine import RankEngine
from varuna_runtime.worker.importing import write_step
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

    def load_imported(self) -> None:
        self._touch("imported")

    def steps(self) -> tuple[int, ...]:
        self._touch("steps")
        return self._steps

    def sound_steps(self) -> tuple[int, ...]:
        self._touch("sound steps")
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


def test_a_rank_with_copies_that_was_told_of_no_durable_step_offers_none_it_did_not_read() -> None:
    stored = FakeStored([2])
    started(stored, MemoryVault(), None)
    assert stored.touched == ["sound steps"]


def test_steps_from_a_damaged_one_on_are_not_sound(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    fleet = Fleet(toys.mlp_training(), "1x1")
    for _ in range(3):
        fleet.train(1)
        save(fleet, store)
    stored = resumption(fleet, store, fleet.engines[0])
    (entry,) = read_manifest(store, "job", 2).shards[:1]
    damaged = bytearray(store.get(entry.key))
    damaged[-1] ^= 1
    store.put(entry.key, bytes(damaged))
    assert (stored.steps(), stored.sound_steps()) == ((1, 2, 3), (1, 2, 3))
    store.delete([read_manifest(store, "job", 3).shards[0].key])
    assert (stored.steps(), stored.sound_steps()) == ((1, 2), (1,))


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


def imported(folder: Path) -> Store:
    """A store with step 0 of the toy job, which differs from its initial weights."""
    store = open_store((folder / "store").as_uri())
    fleet = Fleet(toys.mlp_training(), "1x1")
    write_step(store, "job", fleet.model, record_of(fleet), seed=77)
    return store


def starts_as_imported(engine: RankEngine, model: PartitionedModel) -> bool:
    """Whether the engine is at step 0 with the weights of `imported`."""
    values = {
        f"param:{name}": value
        for segment in model.record_segments
        for name, value in model.initial_values(segment.index, seed=77).items()
    }
    held = {name: t for tensors in engine.state().segments.values() for name, t in tensors.items()}
    return engine.step == 0 and all(held[name].equal(value) for name, value in values.items())


def test_a_rank_that_goes_back_to_the_start_gets_the_imported_weights(tmp_path: Path) -> None:
    """It has copies in memory, but other ranks have none any more."""
    store = imported(tmp_path)
    vault = MemoryVault()
    KeptFleet(Fleet(toys.mlp_training(), "1x1"), [vault], generation=4).train(2)
    fleet, anew = Fleet(toys.mlp_training(), "1x1"), Fleet(toys.mlp_training(), "1x1")
    copies = Copies(vault, [], fleet.engines[0].needed_segments)
    copies.look(60.0)
    start = Start(fleet.engines[0], resumption(fleet, store, fleet.engines[0]), copies, resume_step=None)
    start.load_newest()
    assert (start.loaded.step, start.loadable[-1]) == (2, Version(step=0, generation=0))
    start.begin_anew(anew.engines[0], resumption(anew, store, anew.engines[0]))
    assert starts_as_imported(anew.engines[0], anew.model)
    anew.train(1)


def test_a_rank_whose_copies_broke_off_gets_the_imported_weights(tmp_path: Path) -> None:
    store = imported(tmp_path)
    vault = MemoryVault()
    KeptFleet(Fleet(toys.mlp_training(), "1x1"), [vault], generation=4).train(2)
    vault.lost_after = 2
    fleet, anew = Fleet(toys.mlp_training(), "1x1"), Fleet(toys.mlp_training(), "1x1")
    copies = Copies(vault, [], fleet.engines[0].needed_segments)
    copies.look(60.0)
    start = Start(fleet.engines[0], resumption(fleet, store, fleet.engines[0]), copies, resume_step=None)
    start.load_newest()
    assert start.loaded.step == 0
    start.begin_anew(anew.engines[0], resumption(anew, store, anew.engines[0]))
    assert starts_as_imported(anew.engines[0], anew.model)


def test_what_is_loaded_after_a_new_beginning_goes_into_the_new_engine() -> None:
    stored = FakeStored()
    start, old = started(stored, MemoryVault(), None)
    anew = Fleet(toys.mlp_training(), "1x1")
    start.begin_anew(anew.engines[0], stored)
    start.load(Version(step=2, generation=4))
    assert (anew.engines[0].step, old.engines[0].step) == (2, 3)


def test_copies_of_which_the_state_is_refused_are_not_offered() -> None:
    vault = MemoryVault()
    KeptFleet(Fleet(toys.mlp_training(), "1x1"), [vault], generation=4).train(2)
    fleet = Fleet(toys.mlp_training(optimizer=lambda named: torch.optim.Adagrad(named)), "1x1")
    (engine,) = fleet.engines
    copies = Copies(vault, [], engine.needed_segments)
    copies.look(60.0)
    start = Start(engine, FakeStored(), copies, resume_step=None)
    start.load_newest()
    assert start.loadable == (Version(step=0, generation=0),)
