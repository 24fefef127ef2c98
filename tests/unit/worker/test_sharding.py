"""Replicas that share the optimizer (ZeRO-1) end with the bits of those that do not."""

from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support import toys
from tests.support.fleet import Fleet, Snapshot, assert_equal_bits
from tests.support.fleet_store import load, save
from varuna_runtime.spec.job import Precision
from varuna_runtime.store import open_store
from varuna_runtime.worker.accumulate import BLOCK
from varuna_runtime.worker.engine import RankEngine
from varuna_runtime.worker.training import Training

NUM_STEPS = 3
MAKERS = {"dropout": toys.mlp_training, "tied": toys.tied_training}


@lru_cache
def alone(kind: str) -> Snapshot:
    return Fleet(MAKERS[kind](), "1x1").train(NUM_STEPS)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("layout", ["1x2", "2x2", "1x3", "3x2"])
def test_a_shared_optimizer_gives_the_bits_of_one_process(kind: str, layout: str) -> None:
    ran = Fleet(MAKERS[kind](), layout, shard_optimizer=True)
    assert_equal_bits(ran.train(NUM_STEPS, seed=2), alone(kind))


def wide_training(make: Any, num_blocks: int = 1) -> Training:
    """Its first weight has that many blocks and a bit."""
    width = num_blocks * BLOCK // toys.WIDTH + 1

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(toys.WIDTH, width), nn.Linear(width, 3, bias=False))

    def optimizer(named: Any) -> torch.optim.Optimizer:
        named = list(named)
        plain = [p for _, p in named if p.ndim > 1]
        return make([{"params": plain}, {"params": [p for _, p in named if p.ndim <= 1], "lr": 0.02}])

    return toys.mlp_training(model=model, optimizer=optimizer, scheduler=None, batch_size=6)


ELEMENTWISE = {
    "SGD": lambda groups: torch.optim.SGD(groups, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.1),
    "Adam": lambda groups: torch.optim.Adam(groups, amsgrad=True, weight_decay=0.1),
    "AdamW": torch.optim.AdamW,
    "NAdam": torch.optim.NAdam,
    "RAdam": torch.optim.RAdam,
    "Adamax": torch.optim.Adamax,
    "Adagrad": lambda groups: torch.optim.Adagrad(groups, initial_accumulator_value=0.1),
    "Adadelta": torch.optim.Adadelta,
    "RMSprop": lambda groups: torch.optim.RMSprop(groups, momentum=0.9, centered=True),
    "ASGD": lambda groups: torch.optim.ASGD(groups, t0=1),
    "Rprop": torch.optim.Rprop,
    "Adafactor": torch.optim.Adafactor,  # sees rows and columns: by whole parameters
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_slices_are_stepped_like_whole_parameters_by(name: str) -> None:
    training = wide_training(ELEMENTWISE[name])
    shared = fleet_of(training, "1x2 shared")
    ran = shared.train(2)
    states = [engine.state().segments[0] for engine in shared.engines]
    assert (name == "Adafactor") == all("@0" not in key for state in states for key in state)
    assert_equal_bits(ran, fleet_of(training, "1x1").train(2))


def turned() -> nn.Module:
    """Its first weight is not contiguous, and of more than one block."""
    first, last = nn.Linear(toys.WIDTH, BLOCK // toys.WIDTH + 1), nn.Linear(BLOCK // toys.WIDTH + 1, 3)
    first.weight = nn.Parameter(0.1 * torch.randn(*reversed(first.weight.shape)).t())
    return nn.Sequential(first, last)


NOT_CONTIGUOUS = {
    "channels last": toys.image_training(
        model=lambda: toys.batch_norm_cnn().to(memory_format=torch.channels_last)
    ),
    "turned": toys.mlp_training(model=turned, batch_size=6),
}


@pytest.mark.parametrize("kind", NOT_CONTIGUOUS)
def test_parameters_that_are_not_contiguous_are_shared_as_wholes(kind: str) -> None:
    """They have no flat slices in their own memory."""
    training = NOT_CONTIGUOUS[kind]
    fleet = Fleet(training, "1x2", shard_optimizer=True)
    held = [p for segment in fleet.engines[0]._built.segments for _, p in segment.parameters]
    assert not all(p.is_contiguous() for p in held)
    assert_equal_bits(fleet.train(2, seed=1), Fleet(training, "1x1").train(2))


def test_a_rank_holds_the_state_of_its_share_only() -> None:
    whole, shared = (
        Fleet(wide_training(torch.optim.AdamW, 3), "1x3", shard_optimizer=is_shared)
        for is_shared in (False, True)
    )
    whole.train(1)
    shared.train(1)
    total, *_ = (optimizer_bytes(engine) for engine in whole.engines)
    shares = [optimizer_bytes(engine) for engine in shared.engines]
    assert max(shares) < total / 3 + 2 * 4 * BLOCK  # two moments, cut at blocks
    assert sum(shares) < total + 100  # the others' step counters


def optimizer_bytes(engine: RankEngine) -> int:
    """Bytes of memory, not of views into it."""
    states = engine._built.optimizer._optimizer.state.values()
    return sum(t.untyped_storage().nbytes() for state in states for t in state.values())


@pytest.mark.parametrize("optimizer", ["AdamW", "Adafactor", "Adagrad"])
@pytest.mark.parametrize(
    ("first", "then"), [("1x2 shared", "1x1"), ("1x1", "2x2 shared"), ("2x2 shared", "1x2 shared")]
)
def test_any_layout_goes_on_from_a_checkpoint_of_shares_or_of_wholes(
    optimizer: str, first: str, then: str
) -> None:
    training = wide_training(ELEMENTWISE[optimizer])
    store = open_store("memory://")
    before, after = fleet_of(training, first), fleet_of(training, then)
    before.train(1)
    save(before, store)
    assert load(after, store) == [1] * len(after.engines)
    assert_equal_bits(after.train(1), undisturbed(optimizer))


@lru_cache
def undisturbed(optimizer: str) -> Snapshot:
    fleet = fleet_of(wide_training(ELEMENTWISE[optimizer]), "1x1")
    fleet.train(1)
    return fleet.train(1)


def fleet_of(training: Training, layout: str) -> Fleet:
    layout, _, word = layout.partition(" ")
    return Fleet(training, layout, micro_batch_size=3, virtual_replicas=2, shard_optimizer=bool(word))


@pytest.mark.parametrize("layout", ["1x2", "2x3"])
def test_an_overflow_in_one_share_skips_the_step_on_every_replica(layout: str) -> None:
    training = toys.mlp_training(loss=overflowing)
    whole = Fleet(training, "1x1", precision=Precision.FP16).train(NUM_STEPS)
    assert [step.record.is_skipped for step in whole.steps] != [False] * NUM_STEPS
    shared = Fleet(training, layout, precision=Precision.FP16, shard_optimizer=True)
    assert_equal_bits(shared.train(NUM_STEPS), whole)


def overflowing(output: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Too large for fp16 at the first scale."""
    return 100 * toys.squared_error(output, batch)
