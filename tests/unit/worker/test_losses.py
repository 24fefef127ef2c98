"""A rank lost at any moment: no survivor is between two steps, and no two ranks go on from different ones."""

from functools import lru_cache
from random import Random

import pytest

from tests.support import toys
from tests.support.fleet import Fleet, Snapshot
from tests.support.fleet_store import load, resumption, save
from varuna_runtime.spec.errors import CheckpointRefused, PeerLost
from varuna_runtime.store import open_store
from varuna_runtime.worker.signals import StepDone

LOST = 3  # the last stage of the second replica
MOMENTS = (0, 2, 3, 4, 5, 9, 20, 30, 40, 52)  # messages that a step lacks to its end


@lru_cache
def after(num_steps: int) -> Snapshot:
    return Fleet(toys.tied_training(), "1x1").train(num_steps)


@lru_cache
def messages_a_step() -> int:
    fleet = Fleet(toys.tied_training(), "2x2")
    fleet.train(1)
    return fleet.network.num_sent


def run_into_loss(fleet: Fleet, *, after_messages: int) -> None:
    """Advance ranks in a drawn order; one vanishes after so many messages, the others end or hear of it."""
    network, random = fleet.network, Random(after_messages)
    last = network.num_sent + after_messages
    running = list(range(network.world_size))
    while running:
        if LOST in running and network.num_sent >= last:
            network.lose(LOST)
            running.remove(LOST)
            continue
        rank = random.choice(running)
        try:
            is_done = isinstance(fleet.engines[rank].advance(), StepDone)
        except PeerLost:
            is_done = True
            network.lose(rank, "it lost a peer")
        if is_done and rank != LOST:
            running.remove(rank)
        elif is_done:
            network.lose(LOST)
            running.remove(LOST)


@pytest.mark.parametrize("lacking", MOMENTS)
def test_a_survivor_holds_all_of_one_step_and_nothing_of_the_next(lacking: int) -> None:
    fleet = Fleet(toys.tied_training(), "2x2")
    fleet.train(1)
    run_into_loss(fleet, after_messages=messages_a_step() - lacking)
    for engine in fleet.engines:
        whole = after(engine.step)
        state = engine.state()
        held = {name: t for tensors in state.segments.values() for name, t in tensors.items()}
        assert all(t.equal(whole.tensors[name]) for name, t in held.items())
        assert state.trainer == whole.trainer


@pytest.mark.parametrize("shard_optimizer", [False, True])
def test_what_only_some_committed_is_done_again_by_all_to_the_same_bits(shard_optimizer: bool) -> None:
    store = open_store("memory://")
    fleet = Fleet(toys.tied_training(), "2x2", shard_optimizer=shard_optimizer)
    fleet.train(1)
    save(fleet, store)
    run_into_loss(fleet, after_messages=messages_a_step() - 4)
    assert shard_optimizer or {engine.step for engine in fleet.engines} == {1, 2}
    following = Fleet(toys.tied_training(), "1x3", shard_optimizer=shard_optimizer)
    assert load(following, store) == [1] * 3
    ran = following.train(1)
    assert ran.steps[0] == after(2).steps[1]
    assert all(tensor.equal(ran.tensors[name]) for name, tensor in after(2).tensors.items())


def test_ranks_that_found_different_steps_start_from_the_one_that_all_found() -> None:
    store = open_store("memory://")
    before = Fleet(toys.tied_training(), "1x1")
    before.train(1)
    save(before, store)
    following = Fleet(toys.tied_training(), "2x1")
    early, late = following.engines
    assert resumption(following, store, early).load_newest(None) == 1
    before.train(1)
    save(before, store)  # by the generation before, while this one starts
    newest = resumption(following, store, late)
    assert newest.load_newest(None) == 2
    newest.load_step(1)
    assert [engine.step for engine in following.engines] == [1, 1]
    assert following.train(1).steps[0] == after(2).steps[1]


def test_a_rank_that_found_nothing_does_not_make_others_start_anew() -> None:
    fleet = Fleet(toys.tied_training(), "1x1")
    with pytest.raises(CheckpointRefused, match="no checkpoint where others did"):
        resumption(fleet, open_store("memory://"), fleet.engines[0]).load_step(0)
