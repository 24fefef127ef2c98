"""Weights, optimizer state, statistics and losses are the same bits on every layout (contracts E2-E7)."""

import random
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import count
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from tests.support import toys
from tests.support.fleet import Fleet, Snapshot, assert_equal_bits
from varuna_runtime.spec.errors import ModelRefused
from varuna_runtime.spec.job import Precision
from varuna_runtime.spec.layout import ScheduleKind
from varuna_runtime.worker.training import Training

LAYOUTS = ["2x1", "1x2", "2x2", "4x1", "1x3", "3x1", "2x3"]
NUM_STEPS = 3
MAKERS: dict[str, tuple[Callable[..., Training], dict[str, Any]]] = {
    "dropout": (toys.mlp_training, {}),
    "batch norm": (toys.batch_norm_training, {"micro_batch_size": 3}),
    "tied": (toys.tied_training, {}),
    "bfloat16": (toys.tied_training, {"precision": Precision.BF16}),
    "float16": (toys.tied_training, {"precision": Precision.FP16}),
    "one leaf a replica": (toys.mlp_training, {"virtual_replicas": 3}),
    "five leaves": (toys.mlp_training, {"virtual_replicas": 5}),
    "micro-batches of one": (toys.tied_training, {"micro_batch_size": 1, "virtual_replicas": 8}),
}


def fleet(kind: str, layout: str, **changes: Any) -> Fleet:
    make, settings = MAKERS[kind]
    return Fleet(make(), layout, **(settings | changes))


@lru_cache
def alone(kind: str) -> Snapshot:
    return fleet(kind, "1x1").train(NUM_STEPS)


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_layout_gives_the_bits_of_one_process(kind: str, layout: str) -> None:
    assert_equal_bits(fleet(kind, layout).train(NUM_STEPS, seed=1), alone(kind))


def test_a_stage_without_parameters_gives_the_bits_of_one_process() -> None:
    ran = fleet("dropout", "5x2")
    assert not any(name.startswith("1.") for name in ran.model.initial_state(seed=0))
    assert_equal_bits(ran.train(NUM_STEPS), alone("dropout"))


@pytest.mark.parametrize("schedule", ScheduleKind)
@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("kind", ["dropout", "batch norm", "tied", "bfloat16", "float16"])
def test_schedule_and_recompute_leave_the_bits_alone(
    kind: str, schedule: ScheduleKind, recompute: bool
) -> None:
    ran = fleet(kind, "3x2", schedule=schedule, recompute=recompute).train(NUM_STEPS)
    assert_equal_bits(ran, alone(kind))


@pytest.mark.parametrize("seed", range(5))
def test_the_order_in_which_ranks_run_leaves_the_bits_alone(seed: int) -> None:
    assert_equal_bits(fleet("tied", "2x3").train(NUM_STEPS, seed=seed), alone("tied"))


@pytest.mark.parametrize("kind", ["dropout", "batch norm", "tied"])
@pytest.mark.parametrize(("first", "then"), [("1x1", "2x3"), ("2x2", "4x1"), ("1x3", "1x1"), ("4x1", "3x2")])
def test_resuming_at_another_layout_gives_the_bits_of_an_undisturbed_run(
    kind: str, first: str, then: str
) -> None:
    resumed = fleet(kind, then)
    resumed.resume(fleet(kind, first).train(1))
    steps = resumed.train(NUM_STEPS - 1)
    assert steps.tensors.keys() == alone(kind).tensors.keys()
    assert all(tensor.equal(alone(kind).tensors[name]) for name, tensor in steps.tensors.items())
    assert steps.trainer == alone(kind).trainer
    assert steps.steps == alone(kind).steps[1:]


@pytest.mark.parametrize("kind", ["dropout", "batch norm"])
@pytest.mark.parametrize(
    ("layout", "schedule", "num_advances"),
    [("1x1", "1f1b", 1), ("1x1", "1f1b", 10), ("3x2", "zero-bubble", 10), ("3x2", "zero-bubble", 28)],
)
def test_an_abandoned_step_leaves_nothing_behind(
    kind: str, layout: str, schedule: str, num_advances: int
) -> None:
    again = fleet(kind, layout, schedule=ScheduleKind(schedule), virtual_replicas=2)
    start, undisturbed = again.snapshot(), fleet(kind, "1x1", virtual_replicas=2).train(2)
    again.abandon_step(num_advances, seed=num_advances)
    again.resume(start)
    assert_equal_bits(again.train(2), undisturbed)


def test_a_last_micro_batch_too_small_for_a_batch_norm_is_explained() -> None:
    with pytest.raises(ModelRefused, match="micro-batch of one row has no variance; choose batch_size"):
        Fleet(toys.batch_norm_training(), "1x1", micro_batch_size=2).train(1)


class Stream:
    def __len__(self) -> int:
        return 23  # for the settings of a fleet alone

    def open(self, cursor: int | None) -> Iterator[tuple[Any, int]]:
        rows = toys.regression_rows()
        for place in count(cursor or 0):
            yield rows[place % len(rows)], place + 1


@pytest.mark.parametrize("num_kept", [0, 1])
def test_a_stream_goes_back_to_the_step_that_is_loaded(num_kept: int) -> None:
    ran = Fleet(toys.mlp_training(dataset=Stream()), "3x2")
    kept = ran.train(num_kept) if num_kept else ran.snapshot()
    first = ran.train(2)
    ran.abandon_step(10)
    ran.resume(kept)
    assert_equal_bits(ran.train(2), first)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_short_last_step_leaves_replicas_without_work_and_the_bits_alone(layout: str) -> None:
    whole = fleet("dropout", "1x1", total_samples=13).train(2)
    ran = fleet("dropout", layout, total_samples=13).train(2)
    assert whole.steps[1].record.samples == 2
    assert_equal_bits(ran, whole)


def masked_inputs(batch: tuple[Tensor, Tensor]) -> tuple[Tensor]:
    """Draws a mask and lets the loss know of it through the batch, as masked language models do."""
    mask = torch.rand(batch[0].shape) * random.random() * np.random.rand()
    batch[1].mul_(mask[:, :3])
    return (batch[0] * mask,)


@pytest.mark.parametrize("layout", ["2x1", "1x2", "3x2"])
def test_inputs_that_draw_and_write_into_the_batch_have_the_bits_of_one_process(layout: str) -> None:
    training = toys.mlp_training(inputs=masked_inputs)
    assert_equal_bits(Fleet(training, layout).train(2), Fleet(training, "1x1").train(2))
