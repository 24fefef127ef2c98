"""A step is told once every rank has a copy of it or of a later one, and at the latest after a second."""

import pytest

from varuna_runtime.spec.errors import PeerLost
from varuna_runtime.spec.manifest import LossRecord
from varuna_runtime.worker.committing import LATEST_S, Committing
from varuna_runtime.worker.link.memory import MemoryNetwork
from varuna_runtime.worker.signals import Drain, StepDone


class Copies:
    """A rank's copies in the hands of the test."""

    def __init__(self) -> None:
        self.made_step = -1
        self.num_released = 0

    def release(self) -> None:
        self.num_released += 1


class Ranks:
    """All ranks of a generation, and the steps that each told."""

    def __init__(self, world_size: int = 3) -> None:
        self.network = MemoryNetwork(world_size)
        self.copies = [Copies() for _ in range(world_size)]
        self.told: list[list[int]] = [[] for _ in range(world_size)]
        self.now_s = 100.0
        self.ranks = [
            Committing(self.network.link(r), world_size, copies, clock=lambda: self.now_s)
            for r, copies in enumerate(self.copies)
        ]

    def end(self, step: int, *, keep: bool = True) -> None:
        """Let a step end on all ranks."""
        for rank in range(len(self.ranks)):
            self.end_on(rank, step, keep=keep)

    def end_on(self, rank: int, step: int, *, keep: bool = True) -> None:
        self.ranks[rank].follow(done(step, keep), lambda: self.told[rank].append(step))

    def copy(self, step: int, *ranks: int) -> None:
        """Let the copies of a step be made."""
        for rank in ranks:
            self.copies[rank].made_step = step + 1

    def look(self, *ranks: int) -> None:
        for rank in ranks or range(len(self.ranks)):
            self.ranks[rank].look()


def done(step: int, keep: bool) -> StepDone:
    record = LossRecord(step=step, loss_hex="0x0p+0", weight=1.0, samples=1, generation=1, is_skipped=False)
    return StepDone(
        record=record,
        loss=0.0,
        grad_norm=0.0,
        learning_rate=0.0,
        drain=Drain.NONE,
        checkpoint=False,
        keep=keep,
    )


def test_a_step_is_told_once_all_copies_are_made_by_rank_0_first() -> None:
    ranks = Ranks()
    ranks.end(0)
    ranks.copy(0, 0, 2)
    ranks.look()
    assert ranks.told == [[], [], []]
    ranks.copy(0, 1)
    ranks.look(1, 2)
    assert ranks.told == [[], [], []]
    ranks.look(0)
    assert ranks.told == [[0], [], []]
    ranks.look(1, 2)
    assert ranks.told == [[0], [0], [0]]
    assert [copies.num_released for copies in ranks.copies] == [1, 1, 1]


def test_rank_0_is_not_the_first_to_be_done() -> None:
    ranks = Ranks()
    ranks.end(0)
    ranks.copy(0, 1, 2)
    ranks.look()
    assert ranks.told == [[], [], []]
    ranks.copy(0, 0)
    ranks.look()
    assert ranks.told == [[0], [0], [0]]


def test_steps_of_which_no_copies_are_made_are_told_at_once() -> None:
    ranks = Ranks()
    ranks.end(0, keep=False)
    ranks.end(1, keep=False)
    assert ranks.told == [[0, 1]] * 3


def test_a_step_between_two_that_are_copied_waits_for_the_second() -> None:
    ranks = Ranks()
    ranks.end(0)
    ranks.copy(0, 0, 1, 2)
    ranks.end(1, keep=False)
    ranks.look(1, 2)
    ranks.look()
    assert ranks.told == [[0]] * 3
    ranks.end(2)
    ranks.look()
    assert ranks.told == [[0]] * 3
    ranks.copy(2, 0, 1, 2)
    ranks.look(1, 2)
    ranks.look()
    assert ranks.told == [[0, 1, 2]] * 3


def test_no_step_waits_for_more_than_a_second() -> None:
    ranks = Ranks()
    ranks.end(0)
    ranks.now_s += LATEST_S / 2
    ranks.end(1, keep=False)
    ranks.now_s += LATEST_S / 2
    ranks.look()
    assert ranks.told == [[0]] * 3
    assert ranks.copies[0].num_released == 1
    ranks.now_s += LATEST_S / 2
    ranks.look()
    assert ranks.told == [[0, 1]] * 3
    ranks.end(2, keep=False)
    assert ranks.told == [[0, 1, 2]] * 3, "copies have become rare"


def test_what_is_said_of_a_step_does_not_count_for_the_next() -> None:
    ranks = Ranks()
    ranks.end(0)
    ranks.copy(0, 0, 1, 2)
    ranks.look(1, 2)
    ranks.end(1)
    ranks.look()
    assert ranks.told == [[0], [0], [0]], "the copies are those of the step before"
    ranks.copy(1, 0, 1, 2)
    ranks.look(1, 2)
    ranks.look()
    assert ranks.told == [[0, 1]] * 3


def test_what_became_durable_is_told_without_copies() -> None:
    ranks = Ranks()
    ranks.end(0)
    assert ranks.ranks[1].tell_to(1)
    assert ranks.told == [[], [0], []]


def test_a_step_that_all_copy_proves_that_all_copies_of_the_last_are_made() -> None:
    ranks = Ranks()
    ranks.end(0)
    ranks.end_on(1, 1)
    assert (ranks.told[1], ranks.copies[1].num_released) == ([], 1)
    ranks.end_on(0, 1)
    assert (ranks.told[0], ranks.copies[0].num_released) == ([0], 1)
    ranks.look(1)
    assert ranks.told[1] == [0]


def test_a_lone_rank_tells_a_step_once_it_is_copied() -> None:
    ranks = Ranks(1)
    ranks.end(0)
    ranks.look()
    assert ranks.told == [[]]
    ranks.copy(0, 0)
    ranks.look()
    assert ranks.told == [[0]]


def test_a_rank_that_ends_early_lets_its_copy_count_only_if_others_told_of_the_step() -> None:
    ranks = Ranks()
    ranks.end(0)
    ranks.copy(0, 0, 1, 2)
    ranks.ranks[1].last_look()
    assert ranks.copies[1].num_released == 0
    ranks.look(1, 2)
    ranks.look(0)
    ranks.ranks[1].last_look()
    assert ranks.copies[1].num_released == 1
    ranks.network.lose(0)
    ranks.ranks[2].last_look()
    assert ranks.copies[2].num_released == 1
    assert ranks.told == [[0], [], []]


def test_a_copy_counts_only_once_rank_0_told_the_step_though_another_rank_has_told_it() -> None:
    ranks = Ranks()
    ranks.end(0)
    assert ranks.ranks[1].tell_to(1)
    ranks.look(1)
    assert (ranks.told[1], ranks.copies[1].num_released) == ([0], 0)
    ranks.copy(0, 0, 1, 2)
    ranks.look(1, 2)
    ranks.look()
    assert (ranks.told[1], ranks.copies[1].num_released) == ([0], 1)


def test_the_last_step_is_told_and_its_copy_counts_at_the_end() -> None:
    ranks = Ranks()
    ranks.end(0)
    for rank in ranks.ranks:
        rank.finish()
    assert ranks.told == [[0]] * 3
    assert [copies.num_released > 0 for copies in ranks.copies] == [True] * 3


def test_the_script_is_told_before_the_copy_counts_and_others_after_it() -> None:
    ranks, seen = Ranks(1), []
    ranks.copies[0].release = lambda: seen.append("counts")  # type: ignore[method-assign]
    ranks.ranks[0].follow(done(0, True), lambda: seen.append("script"), then=lambda: seen.append("others"))
    ranks.copy(0, 0)
    assert ranks.ranks[0].look()
    assert seen == ["script", "counts", "others"]
    assert not ranks.ranks[0].look()


def test_a_lost_peer_does_not_keep_a_rank_from_ending() -> None:
    ranks = Ranks()
    ranks.end(0)
    ranks.network.lose(0)
    ranks.ranks[1].last_look()
    assert ranks.copies[1].num_released == 0


def test_a_peer_that_was_lost_takes_no_word_of_a_step_away_and_is_heard_of_later() -> None:
    ranks = Ranks()
    ranks.end(0)
    ranks.network.lose(1)
    assert ranks.ranks[0].tell_to(1)
    assert (ranks.told[0], ranks.copies[0].num_released) == ([0], 1)
    ranks.end_on(0, 1)
    ranks.copy(1, 0)
    with pytest.raises(PeerLost):
        ranks.look(0)
