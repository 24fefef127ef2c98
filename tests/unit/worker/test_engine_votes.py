import json
from functools import partial

import pytest
import torch

from tests.support import toys
from tests.support.driver import drive
from tests.support.fleet import NO_STEP, Fleet
from varuna_runtime.spec.errors import CheckpointRefused, StepDiverged
from varuna_runtime.worker.engine import Keeping
from varuna_runtime.worker.signals import PROGRESSED, Drain


def test_one_rank_that_asks_to_drain_and_save_is_heard_by_all_and_once() -> None:
    fleet = Fleet(toys.mlp_training(), "2x2")
    fleet.engines[3].request(drain=Drain.DURABLE)
    fleet.engines[1].request(checkpoint=True)
    first, second = fleet.train(2).steps
    assert (first.drain, first.checkpoint) == (Drain.DURABLE, True)
    assert (second.drain, second.checkpoint) == (Drain.NONE, False)


def test_a_request_in_the_middle_of_a_step_is_carried_by_its_vote() -> None:
    fleet = Fleet(toys.mlp_training(), "1x1")
    (engine,) = fleet.engines
    assert engine.advance() == PROGRESSED
    engine.request(drain=Drain.KEPT)
    assert engine.run_step().drain


def test_a_checkpoint_holds_the_losses_of_the_last_steps_also_from_before_it_was_loaded() -> None:
    fleet, other = Fleet(toys.mlp_training(), "1x2"), Fleet(toys.mlp_training(), "2x1")
    other.resume(fleet.train(2))
    assert [record.step for record in other.train(1).trainer.losses] == [0, 1, 2]


def test_the_learning_rate_is_the_one_the_step_used() -> None:
    steps = Fleet(toys.mlp_training(), "1x1").train(2).steps
    assert steps[0].learning_rate == 0.01
    assert steps[1].learning_rate < 0.01


def test_the_norm_is_that_before_clipping() -> None:
    clipped = Fleet(toys.mlp_training(clip_grad_norm=0.01), "1x1").train(1).steps[0]
    free = Fleet(toys.mlp_training(clip_grad_norm=None), "1x1").train(1).steps[0]
    assert clipped.grad_norm == free.grad_norm


def test_every_layout_has_the_same_weights_digest() -> None:
    digests = set()
    for layout in ("1x1", "2x2", "3x1"):
        fleet = Fleet(toys.tied_training(), layout)
        fleet.train(1)
        digests |= set(Digests(fleet).run())
    assert len(digests) == 1


def test_replicas_that_differ_are_found_when_the_digest_is_made() -> None:
    fleet = Fleet(toys.tied_training(), "1x2")
    state = fleet.engines[1].state().segments[0]
    next(iter(state.values())).add_(1.0)
    with pytest.raises(StepDiverged, match="rank 1 holds other weights"):
        Digests(fleet).run()


def test_a_checkpoint_of_another_model_is_refused_by_name() -> None:
    fleet = Fleet(toys.mlp_training(), "1x1")
    state = fleet.engines[0].state()
    state.segments[0]["param:0.weight"] = torch.zeros(1)
    with pytest.raises(CheckpointRefused, match=r"param:0\.weight"):
        fleet.engines[0].load(state.segments, state.trainer)


def test_the_saved_groups_name_every_parameter_of_the_model_on_every_rank() -> None:
    states = [engine.state() for engine in Fleet(toys.tied_training(), "2x2").engines]
    assert len({state.trainer.optimizer_groups for state in states}) == 1
    assert "3.norm.weight" in json.dumps(json.loads(states[0].trainer.optimizer_groups))


def test_a_step_is_kept_if_every_rank_wants_it_and_recoverable_up_to_the_rank_that_is_behind() -> None:
    fleet = Fleet(toys.mlp_training(), "2x2")
    for rank, engine in enumerate(fleet.engines):
        engine.keep_by(partial(Keeping, wants=rank != 2, kept=5 + rank, can_drain=Drain.KEPT))
    (first,) = fleet.train(1).steps
    assert (first.keep, first.recoverable) == (False, 5)
    fleet.engines[2].keep_by(lambda: Keeping(wants=True, kept=4))
    (second,) = fleet.train(1).steps
    assert (second.keep, second.recoverable) == (True, 4)


def test_a_drain_is_durable_if_some_rank_keeps_no_copies() -> None:
    fleet = Fleet(toys.mlp_training(), "1x2")
    for engine in fleet.engines:
        engine.keep_by(lambda: Keeping(can_drain=Drain.KEPT))
    fleet.engines[0].request(drain=Drain.KEPT)
    assert fleet.train(1).steps[0].drain is Drain.KEPT
    fleet.engines[1].keep_by(Keeping)
    fleet.engines[0].request(drain=Drain.KEPT)
    assert fleet.train(1).steps[0].drain is Drain.DURABLE


def test_what_is_to_be_waited_for_before_a_change_is_waited_for_once_and_sees_the_old_values() -> None:
    fleet = Fleet(toys.mlp_training(), "1x1")
    (engine,) = fleet.engines
    seen: list[str] = []
    before = fleet.snapshot().tensors

    def look() -> None:
        assert all(tensor.equal(before[name]) for name, tensor in fleet.snapshot().tensors.items())
        seen.append("called")

    engine.before_change(look)
    engine.before_change(look)
    fleet.train(2)
    assert seen == ["called", "called"]


class Digests:
    """Drives the digests of all ranks like steps."""

    def __init__(self, fleet: Fleet) -> None:
        self.network = fleet.network
        self.works = [Collecting(engine) for engine in fleet.engines]

    def run(self) -> list[str]:
        drive(self.network, self.works, seed=0)
        return [work.result for work in self.works]


class Collecting:
    def __init__(self, engine: object) -> None:
        self.work = engine.digest()
        self.result = ""

    def advance(self) -> object:
        try:
            return next(self.work)
        except StopIteration as end:
            self.result = end.value
            return NO_STEP
