import threading
from typing import Any

import pytest

from tests.support import toys
from tests.support.copies import Clock, KeptFleet, MemoryVault, keeper_of
from tests.support.fleet import Fleet
from varuna_runtime.worker.buddies import RETRY_S, Line
from varuna_runtime.worker.copying import FIRST_AFTER_S
from varuna_runtime.worker.engine import Keeping
from varuna_runtime.worker.keep_policy import KeepPolicy
from varuna_runtime.worker.signals import Drain, StepDone, Waiting


def fleet_of_one() -> Fleet:
    return Fleet(toys.mlp_training(), "1x1")


def test_every_step_is_kept_and_recoverable_is_the_one_before() -> None:
    fleet = Fleet(toys.mlp_training(), "2x2")
    kept = KeptFleet(fleet, [MemoryVault() for _ in fleet.engines])
    steps = [kept.train(1).steps[0] for _ in range(3)]
    assert [step.keep for step in steps] == [True, True, True]
    assert [step.recoverable for step in steps] == [0, 1, 2]
    assert kept.kept == [0] * 4


def test_a_vault_keeps_the_last_two_steps() -> None:
    vault = MemoryVault()
    KeptFleet(fleet_of_one(), [vault]).train(4)
    assert sorted(copy.version.step for copy in vault.inventory()) == [3, 4]


def going_on(vault: MemoryVault) -> KeptFleet:
    """Return a second generation, from step 2."""
    first, second = fleet_of_one(), fleet_of_one()
    KeptFleet(first, [vault]).train(2)
    second.resume(first.snapshot())
    return KeptFleet(second, [vault], generation=2)


def test_a_generation_that_goes_on_keeps_where_it_started_if_its_first_step_takes_long() -> None:
    vault = MemoryVault()
    kept = going_on(vault)
    kept.copying[0].look()
    assert {copy.version.generation for copy in vault.inventory()} == {1}
    kept.clock.now_s = FIRST_AFTER_S
    kept.copying[0].look()
    kept.wait()
    assert kept.keepers[0].keeps(2)
    assert vault.retired == [1], "the copies of the first generation are needed still"
    step = kept.train(1).steps[-1]
    assert (step.recoverable, vault.retired) == (2, [1, 2])


@pytest.mark.parametrize(
    ("layout", "options", "waits_for"),
    [("2x1", {}, "decision"), ("1x2", {"shard_optimizer": True}, "parameters")],
    ids=["voted", "stepped"],
)
def test_where_a_generation_started_is_not_kept_once_the_step_was_voted_on(
    layout: str, options: dict[str, Any], waits_for: str
) -> None:
    first, second = (Fleet(toys.mlp_training(), layout, **options) for _ in range(2))
    first.train(2)
    second.resume(first.snapshot())
    vaults = [MemoryVault() for _ in second.engines]
    kept = KeptFleet(second, vaults, generation=2)
    done: dict[int, StepDone] = {}
    num_late = 0
    while len(done) < len(second.engines):
        for rank, engine in enumerate(second.engines):
            if rank in done:
                continue
            signal = engine.advance()
            if isinstance(signal, StepDone):
                done[rank] = signal
            elif isinstance(signal, Waiting) and waits_for in signal.on:
                kept.clock.now_s = FIRST_AFTER_S
                kept.copying[rank].look()
                num_late += 1
    assert num_late > 0
    assert [vault.inventory() for vault in vaults] == [(), ()]
    for rank, copying in enumerate(kept.copying):
        assert done[rank].keep
        copying.follow(done[rank])
    kept.wait()
    assert [keeper.keeps(3) for keeper in kept.keepers] == [True, True]


def test_where_a_generation_started_is_not_kept_after_its_first_step() -> None:
    vault = MemoryVault()
    kept = going_on(vault)
    assert kept.train(1).steps[-1].recoverable == -1
    kept.clock.now_s = FIRST_AFTER_S
    kept.copying[0].look()
    kept.wait()
    assert kept.keepers[0].keeps(3)
    assert kept.train(1).steps[-1].recoverable == 3
    assert vault.retired == [1, 2]


def test_older_generations_stay_while_a_rank_is_not_safe() -> None:
    first, vault, buddy = fleet_of_one(), MemoryVault(), MemoryVault()
    snapshot = KeptFleet(first, [vault]).train(2)
    second = fleet_of_one()
    second.resume(snapshot)
    buddy.is_down = True
    kept = KeptFleet(second, [vault], [buddy], generation=2)
    kept.train(2)
    assert vault.retired == [1]
    buddy.is_down = False
    kept.clock.now_s = 2 * RETRY_S
    kept.train(2)
    assert vault.retired == [1, 2]
    assert kept.kept == [5]


def test_without_a_vault_nothing_is_kept_and_a_drain_is_durable() -> None:
    fleet = Fleet(toys.mlp_training(), "1x2")
    kept = KeptFleet(fleet, [MemoryVault(), None])
    fleet.engines[0].request(drain=Drain.KEPT)
    (step,) = kept.train(1).steps
    assert (step.keep, step.recoverable, step.drain) == (False, -1, Drain.DURABLE)


@pytest.mark.parametrize("limit_bytes", [0, 100])
def test_over_the_limit_of_the_vault_training_goes_on_without_copies(limit_bytes: int) -> None:
    kept = KeptFleet(fleet_of_one(), [MemoryVault(limit_bytes=limit_bytes)])
    steps = [kept.train(1).steps[0] for _ in range(3)]
    assert [step.recoverable for step in steps] == [0, -1, -1]
    assert kept.keepers[0].says == Keeping()


def test_a_vault_full_of_older_copies_has_room_once_a_newer_step_is_durable() -> None:
    first, second, vault = fleet_of_one(), fleet_of_one(), MemoryVault()
    second.resume(KeptFleet(first, [vault]).train(2))
    vault.limit_bytes = 0
    kept = KeptFleet(second, [vault], generation=2)
    kept.train(1)
    assert kept.keepers[0].says == Keeping()
    vault.limit_bytes = 1 << 30  # as if retiring freed it
    assert kept.train(1).steps[0].recoverable == -1
    kept.copying[0].is_durable(3)
    assert [kept.train(1).steps[0].recoverable for _ in range(2)] == [-1, 5]


def test_older_generations_go_once_a_step_of_this_one_is_durable_though_no_copy_is_whole() -> None:
    first, vault, buddy = fleet_of_one(), MemoryVault(), MemoryVault()
    snapshot = KeptFleet(first, [vault]).train(2)
    second = fleet_of_one()
    second.resume(snapshot)
    buddy.is_down = True
    kept = KeptFleet(second, [vault], [buddy], generation=2)
    kept.copying[0].is_durable(1)
    assert vault.retired == [1], "that step is older than what this generation began with"
    kept.copying[0].is_durable(2)
    assert (vault.retired, kept.kept) == ([1, 2], [])


def test_a_vault_that_dies_takes_the_copies_but_not_the_training() -> None:
    vault = MemoryVault()
    kept = KeptFleet(fleet_of_one(), [vault])
    kept.train(2)
    vault.allocate = vault.inventory = None  # type: ignore[assignment]
    for buffer in vault._buffers:
        buffer.begin = vault.give  # type: ignore[method-assign]
    vault.is_down = True
    assert kept.train(2).steps[0].recoverable == -1
    assert not kept.keepers[0].is_able


def test_a_vault_that_follows_one_that_died_is_used_after_a_while() -> None:
    old, new = MemoryVault(), MemoryVault()
    fleet, clock = fleet_of_one(), Clock()
    vaults: list[MemoryVault] = []
    keeper = keeper_of(fleet, 0, old, clock=clock, reopen=lambda: vaults.pop() if vaults else None)
    fleet.train(1)
    old.is_down = True
    keeper.begin()
    assert not keeper.is_able
    vaults.append(new)
    assert not keeper.says.wants, "it is not asked for all the time"
    vaults.clear()
    clock.now_s = RETRY_S
    assert not keeper.says.wants, "it is not back yet"
    vaults.append(new)
    clock.now_s = 2 * RETRY_S
    assert not keeper.says.wants, "it is asked for more and more rarely"
    clock.now_s = 3 * RETRY_S
    assert keeper.says.wants
    keeper.begin()
    assert keeper.wait_done(60)
    assert [copy.version.step for copy in new.inventory()] == [1]
    assert keeper.keeps(1)


def test_a_copy_that_was_given_up_says_nothing_of_those_that_follow() -> None:
    old, new, clock, fleet = MemoryVault(), MemoryVault(), Clock(), fleet_of_one()
    keeper = keeper_of(fleet, 0, old, clock=clock, reopen=lambda: new)
    fleet.train(1)
    keeper.begin(is_held=True)
    old.retire = lambda before_generation: old.give()  # type: ignore[method-assign]
    old.is_down = True
    keeper.retire()
    assert not keeper.is_able
    clock.now_s = RETRY_S
    assert keeper.says.wants
    fleet.train(1)
    keeper.begin(is_held=True)
    assert not keeper.wait_done(0.1)
    old.is_down = False
    assert (old.inventory(), new.inventory()) == ((), ())
    keeper.release()
    assert keeper.wait_done(60)
    assert keeper.keeps(2)


def test_a_vault_that_is_full_is_not_looked_for_again() -> None:
    fleet, clock = fleet_of_one(), Clock()
    keeper = keeper_of(fleet, 0, MemoryVault(limit_bytes=0), clock=clock, reopen=MemoryVault)
    fleet.train(1)
    keeper.begin()
    clock.now_s = 100.0
    assert not keeper.says.wants


def test_a_buddy_that_is_down_leaves_copies_here_but_nothing_recoverable() -> None:
    vault, buddy = MemoryVault(), MemoryVault()
    kept = KeptFleet(fleet_of_one(), [vault], [buddy])
    kept.train(2)
    buddy.is_down = True
    assert [kept.train(1).steps[0].recoverable for _ in range(3)] == [2, -1, -1]
    assert sorted(copy.version.step for copy in vault.inventory()) == [4, 5]


def test_a_buddy_whose_connection_breaks_gets_the_same_copy_all_the_same() -> None:
    fleet, buddy = fleet_of_one(), MemoryVault()
    keeper = keeper_of(fleet, 0, MemoryVault(), [buddy], pause=lambda _: setattr(buddy, "is_down", False))
    fleet.train(1)
    buddy.is_down = True
    keeper.begin()
    assert keeper.wait_done(60.0)
    assert keeper.keeps(1)
    assert [copy.version.step for copy in buddy.inventory()] == [1]


def test_no_other_copy_is_begun_while_a_buddy_that_failed_a_moment_ago_is_asked_again() -> None:
    fleet, buddy, paused, is_seen = fleet_of_one(), MemoryVault(), threading.Event(), threading.Event()

    def pause(_: float) -> None:
        paused.set()
        assert is_seen.wait(60.0)

    keeper = keeper_of(fleet, 0, MemoryVault(), [buddy], pause=pause)
    fleet.train(1)
    keeper.begin()
    assert keeper.wait_done(60.0)
    fleet.train(1)
    buddy.is_down = True
    keeper.begin()
    assert paused.wait(60.0)
    assert (keeper.says.wants, keeper.says.kept) == (False, 1), "the copies of step 1 are whole everywhere"
    is_seen.set()
    assert keeper.wait_done(60.0)
    assert (keeper.says.wants, keeper.says.kept) == (True, -1), "it is not waited for for ever"


def test_a_buddy_that_failed_is_tried_again_after_a_while_and_told_of_once(
    capsys: pytest.CaptureFixture[str],
) -> None:
    buddy, now_s, dialled = MemoryVault(), [0.0], []

    def connect() -> MemoryVault:
        dialled.append(now_s[0])
        return buddy

    vault = MemoryVault()
    fleet = fleet_of_one()
    KeptFleet(fleet, [vault]).train(1)
    (copy,) = vault.inventory()
    with vault.reading(copy) as reading:
        record = reading.record
    line = Line("n7", connect, lambda: now_s[0])
    buddy.is_down = True
    for now_s[0] in (0.0, 1.0, RETRY_S - 0.1, RETRY_S):
        assert not line.store(record, memoryview(b""))
    buddy.is_down = False
    now_s[0] = 3 * RETRY_S
    assert line.store(record, memoryview(b""))
    assert dialled == [0.0, RETRY_S, 3 * RETRY_S]
    assert capsys.readouterr().out.count("n7") == 2


def test_a_drain_keeps_the_last_step_wherever_the_copies_were() -> None:
    fleet, vault = fleet_of_one(), MemoryVault()
    kept = KeptFleet(fleet, [vault])
    kept.keepers[0]._policy.wait_s = 1e12  # no step is kept for its own sake
    kept.train(3)
    assert vault.inventory() == ()
    assert kept.copying[0].keep_last()
    assert kept.keepers[0].keeps(3)


@pytest.mark.parametrize(
    ("drain", "wish", "is_enough"),
    [
        (Drain.KEPT, Drain.KEPT, True),
        (Drain.KEPT, Drain.NONE, True),
        (Drain.KEPT, Drain.DURABLE, False),
        (Drain.DURABLE, Drain.DURABLE, False),
    ],
)
def test_copies_are_not_enough_once_a_durable_stop_is_asked_for_though_the_vote_is_over(
    drain: Drain, wish: Drain, *, is_enough: bool
) -> None:
    kept = KeptFleet(fleet_of_one(), [vault := MemoryVault()])
    kept.train(1)
    assert kept.copying[0].stops_in_memory(drain, lambda: wish) is is_enough
    assert 1 in {copy.version.step for copy in vault.inventory()}, "kept all the same, to start from"


def test_a_drain_asks_a_buddy_that_failed_once_more_at_once() -> None:
    vault, buddy = MemoryVault(), MemoryVault()
    kept = KeptFleet(fleet_of_one(), [vault], [buddy])
    buddy.is_down = True
    kept.train(2)
    assert not kept.copying[0].keep_last()
    buddy.is_down = False
    assert kept.copying[0].keep_last()
    assert 2 in {copy.version.step for copy in buddy.inventory()}


def test_a_copy_is_waited_for_before_the_tensors_change() -> None:
    fleet = fleet_of_one()
    keeper = keeper_of(fleet, 0, vault := MemoryVault())
    fleet.train(1)
    before = fleet.snapshot()
    keeper.begin()
    fleet.train(1)
    assert keeper.wait_done(60.0)
    (copy,) = vault.inventory()
    with vault.reading(copy) as reading:
        for place, tensor in reading.tensors(reading.record.tensors):
            assert tensor.equal(before.tensors[place.name]), place.name


def test_copies_are_taken_at_every_step_while_they_are_cheap_and_rarely_when_not() -> None:
    policy = KeepPolicy(last_s=0.0)
    for _ in range(2):
        policy.learnt(5.0)  # the first use of each buffer
    assert policy.is_due(0.0)
    policy.learnt(0.003)
    policy.begun(1.0)
    assert not policy.is_due(1.09)
    assert policy.is_due(1.11)
    for _ in range(50):
        policy.learnt(3.0)
    policy.begun(2.0)
    assert not policy.is_due(90.0)
    assert policy.is_due(103.0)


def test_a_copy_that_is_held_is_none_before_it_is_released() -> None:
    fleet, vault, made = fleet_of_one(), MemoryVault(), threading.Event()
    keeper = keeper_of(fleet, 0, vault, on_made=made.set)
    fleet.train(1)
    keeper.begin(is_held=True)
    assert made.wait(60)
    assert keeper.made_step == 1
    assert keeper.wait_copied(0), "a process that ends now has nothing to finish"
    assert vault.inventory() == ()
    assert not keeper.keeps(1)
    keeper.release()
    assert keeper.wait_done(60)
    assert [copy.version.step for copy in vault.inventory()] == [1]
    assert keeper.keeps(1)


def test_a_release_is_of_the_copy_under_way_and_no_other() -> None:
    fleet, vault = fleet_of_one(), MemoryVault()
    keeper = keeper_of(fleet, 0, vault)
    fleet.train(1)
    keeper.release()
    keeper.begin(is_held=True)
    assert not keeper.wait_done(0.1)
    assert vault.inventory() == ()
    keeper.release()
    assert keeper.wait_done(60)
    assert keeper.keeps(1)


@pytest.mark.parametrize(("rank", "wants"), [(0, False), (1, True)])
def test_another_copy_is_wanted_while_the_last_one_waits_for_the_word_of_rank_0_alone(
    rank: int, wants: bool
) -> None:
    fleet, vault, made = Fleet(toys.mlp_training(), "1x2"), MemoryVault(), threading.Event()
    keeper = keeper_of(fleet, rank, vault, on_made=made.set)
    fleet.train(1)
    keeper.begin(is_held=True)
    assert made.wait(60)
    assert keeper.says.wants is wants
    fleet.train(1)
    keeper.release()
    keeper.wait_sealed()
    assert keeper.says.wants
    keeper.begin(is_held=True)
    assert [copy.version.step for copy in vault.inventory()] == [1], "it was sealed first"
    keeper.release()
    assert keeper.wait_done(60)
    assert sorted(copy.version.step for copy in vault.inventory()) == [1, 2]


def test_a_vault_that_answers_nonsense_is_given_up_without_a_hang() -> None:
    fleet, vault = fleet_of_one(), MemoryVault()
    keeper = keeper_of(fleet, 0, vault)
    fleet.train(1)
    keeper.begin(is_held=True)
    for buffer in vault._buffers:
        buffer.seal = lambda record: {}["nonsense"]  # type: ignore[method-assign]
    keeper.release()
    keeper.wait_sealed()
    assert keeper.wait_done(60)
    assert not keeper.is_able


def test_no_other_copy_is_wanted_while_the_last_one_is_to_go_to_a_buddy() -> None:
    fleet, made = fleet_of_one(), threading.Event()
    keeper = keeper_of(fleet, 0, MemoryVault(), [MemoryVault()], on_made=made.set)
    fleet.train(1)
    keeper.begin(is_held=True)
    assert made.wait(60)
    assert not keeper.says.wants
    keeper.release()
    assert keeper.wait_done(60)
    assert keeper.says.wants
