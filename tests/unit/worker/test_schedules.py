"""Programs as the engine runs them, all ranks in this process."""

import weakref

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from tests.support import toys
from tests.support.fleet import Fleet, assert_equal_bits
from varuna_runtime.spec.layout import ScheduleKind
from varuna_runtime.spec.programs import of_list, stage_program
from varuna_runtime.spec.schedule_check import validate

KINDS = list(ScheduleKind)


@pytest.mark.parametrize("schedule", KINDS)
@pytest.mark.parametrize("seed", range(3))
def test_what_the_ranks_ran_could_be_run_as_a_list(schedule: ScheduleKind, seed: int) -> None:
    """Whatever the order in which messages come, each op ran once, on what it needs, within the caps."""
    fleet = Fleet(toys.tied_training(batch_size=12), "3x1", schedule=schedule, recompute=True)
    fleet.train(1, seed=seed)
    lists = [of_list(engine.realised, stage=s, num_stages=3) for s, engine in enumerate(fleet.engines)]
    validate(lists)
    for stage, ran in enumerate(lists):
        todo = stage_program(fleet.plan, stage, 6)
        assert (ran.num_ops, ran.recompute) == (todo.num_ops, todo.recompute)
        assert ran.in_flight <= todo.in_flight


@pytest.mark.parametrize("schedule", [ScheduleKind.WORK_CONSERVING, ScheduleKind.ZERO_BUBBLE])
def test_a_late_rank_changes_the_order_of_a_rule_and_not_the_bits(schedule: ScheduleKind) -> None:
    ran = []
    for seed in range(8):
        fleet = Fleet(toys.mlp_training(batch_size=12), "3x1", schedule=schedule)
        ran.append((fleet.engines[0], fleet.train(2, seed=seed)))
    assert len({engine.realised for engine, _ in ran}) > 1
    for _, snapshot in ran[1:]:
        assert_equal_bits(snapshot, ran[0][1])


def padded(samples: list[tuple[Tensor, Tensor]]) -> tuple[Tensor, Tensor]:
    tokens, targets = zip(*samples, strict=True)
    return pad_sequence(tokens, batch_first=True), pad_sequence(targets, batch_first=True)


class Sentences(toys.Rows):
    """Two to nine tokens each."""

    def __init__(self) -> None:
        def make(g: torch.Generator) -> tuple[Tensor, Tensor]:
            tokens = torch.randint(1, toys.VOCABULARY, (3 + g.initial_seed() % 8,), generator=g)
            return tokens[:-1], tokens[1:]

        super().__init__(make, 23)


@pytest.mark.parametrize("schedule", KINDS)
def test_sequences_may_be_as_long_as_they_like_in_each_micro_batch(schedule: ScheduleKind) -> None:
    training = toys.tied_training(dataset=Sentences(), collate=padded)
    alone = Fleet(training, "1x1").train(3)
    assert_equal_bits(Fleet(training, "3x2", schedule=schedule, recompute=True).train(3, seed=1), alone)


def most_saved(num_micro: int) -> int:
    """Return the most tensors that graphs keep at once in a step with recompute and a split backward."""
    alive: weakref.WeakSet[Tensor] = weakref.WeakSet()
    most = 0

    def pack(tensor: Tensor) -> Tensor:
        nonlocal most
        kept = tensor.detach()
        alive.add(kept)
        most = max(most, len(alive))
        return kept

    training = toys.mlp_training(batch_size=2 * num_micro)
    fleet = Fleet(training, "2x1", schedule=ScheduleKind.ZERO_BUBBLE, recompute=True)
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        fleet.train(1)
    return most


def test_recompute_and_a_split_backward_hold_no_more_with_more_micro_batches() -> None:
    """One recomputed and those whose W is owed, however long the step is (pytorch/pytorch#136766)."""
    assert 0 < most_saved(36) < 1.5 * most_saved(12)


def test_one_micro_batch_is_read_ahead_while_no_op_is_ready() -> None:
    reads: list[int] = []

    class Logged(toys.Rows):
        def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
            reads.append(index)
            return super().__getitem__(index)

    rows = Logged(lambda g: (torch.randn(toys.WIDTH, generator=g), torch.randn(3, generator=g)), 23)
    fleet = Fleet(toys.mlp_training(dataset=rows, batch_size=8, shuffle=False), "2x1")
    last = fleet.engines[1]
    reads.clear()
    last.advance()  # no activation is here: it reads what its first forward will need
    assert sorted(set(reads)) == [0, 1]
    for _ in range(5):
        last.advance()
    assert sorted(set(reads)) == [0, 1]
