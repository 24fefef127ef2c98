"""The loss scale of fp16: alone, and as one vote of all stages and replicas."""

import math
from dataclasses import replace
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import toys
from tests.support.fleet import Fleet, Snapshot, assert_equal_bits
from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import StepDiverged
from varuna_runtime.spec.job import Precision
from varuna_runtime.spec.manifest import ScalerState, TrainerState
from varuna_runtime.worker.scaling import FLOOR, INITIAL, INTERVAL, LARGEST, PATIENCE, LossScale


def judge(scale: LossScale, *, is_finite: bool = True, weight: float = 1.0) -> bool:
    return scale.judge(0, norm=1.0 if is_finite else math.inf, loss=1.0, weight=weight)


def test_full_precision_has_no_scale_and_ends_with_a_step_that_is_not_finite() -> None:
    scale = LossScale(Precision.BF16)
    assert judge(scale)
    assert (scale.scale, scale.state) == (1.0, None)
    with pytest.raises(StepDiverged, match="gradients are not finite"):
        judge(scale, is_finite=False)
    with pytest.raises(StepDiverged, match="the loss is nan"):
        scale.judge(0, norm=1.0, loss=math.nan, weight=1.0)


def test_an_overflow_halves_the_scale_and_the_first_takes_the_weight_off() -> None:
    scale = LossScale(Precision.FP16)
    assert not judge(scale, is_finite=False, weight=100.0)
    assert scale.scale == INITIAL / 128
    assert judge(scale, weight=100.0)
    assert not judge(scale, is_finite=False, weight=10_000.0)
    assert scale.scale == INITIAL / 256


def test_a_loss_that_is_not_finite_is_an_overflow_too() -> None:
    scale = LossScale(Precision.FP16)
    assert not scale.judge(0, norm=1.0, loss=math.inf, weight=1.0)
    assert scale.scale == INITIAL / 2


def test_the_scale_grows_after_an_interval_without_overflow_up_to_a_limit() -> None:
    scale = LossScale(Precision.FP16)
    assert judge(scale)
    assert not judge(scale, is_finite=False)
    for _ in range(INTERVAL - 1):
        assert judge(scale)
    assert scale.scale == INITIAL / 2
    assert judge(scale)
    assert scale.scale == INITIAL
    for _ in range(20 * INTERVAL):
        assert judge(scale)
    assert scale.scale == LARGEST


def test_overflows_at_the_floor_end_the_training() -> None:
    scale = LossScale(Precision.FP16)
    while scale.scale > FLOOR:
        judge(scale, is_finite=False)
    for _ in range(PATIENCE):
        assert not judge(scale, is_finite=False)
    assert judge(scale)  # one good step is a new beginning
    for _ in range(PATIENCE):
        assert not judge(scale, is_finite=False)
    with pytest.raises(StepDiverged, match="precision: bf16"):
        judge(scale, is_finite=False)


def test_a_trainer_state_from_before_there_was_a_scale_still_loads() -> None:
    text = (
        '{"losses":[{"generation":1,"loss_hex":"0x1p+0","samples":8,"step":0,"weight":8.0}],'
        '"optimizer_groups":"","scheduler":"","step":1,"stream_cursor":""}'
    )
    state = canonical.loads(TrainerState, text)
    assert state.scaler is None
    assert not state.losses[0].is_skipped
    scale = LossScale(Precision.FP16)
    scale.restore(state.scaler)
    assert scale.scale == INITIAL


# --- over layouts --------------------------------------------------------------------------------------

BURST_ROW = 13  # in the second of two batches of eleven
LAYOUTS = ["1x2", "3x2", "4x1"]


class Burst(torch.autograd.Function):
    """The identity, whose gradient overflows where `mark` is large."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, mark: Tensor) -> Tensor:
        ctx.save_for_backward(mark)
        return values.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (mark,) = ctx.saved_tensors
        return torch.where(mark > 50.0, math.inf, gradient), None


def bursting_loss(output: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
    return toys.squared_error(Burst.apply(output, batch[1]), batch) / 1024  # so that only the mark overflows


class BurstingRows(toys.Rows):
    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        x, y = super().__getitem__(index)
        return x, (torch.full_like(y, 60.0) if index == BURST_ROW else y)


def bursting(layout: str, **options: Any) -> Fleet:
    rows = BurstingRows(toys.regression_rows()._make, 22)
    training = toys.mlp_training(loss=bursting_loss, dataset=rows, shuffle=False)
    return Fleet(training, layout, precision=Precision.FP16, **options)


def skipped(snapshot: Snapshot) -> list[bool]:
    return [step.record.is_skipped for step in snapshot.steps]


@lru_cache
def undisturbed() -> Snapshot:
    return bursting("1x1").train(4)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_every_rank_skips_the_same_steps_and_ends_with_the_bits_of_one_process(layout: str) -> None:
    alone = undisturbed()
    assert skipped(alone) == [False, True, False, True]
    assert [step.loss_scale for step in alone.steps] == [INITIAL, INITIAL, INITIAL / 2, INITIAL / 2]
    assert_equal_bits(bursting(layout).train(4), alone)


def test_a_sharded_optimizer_skips_the_same_steps() -> None:
    assert_equal_bits(bursting("2x2", shard_optimizer=True).train(4), undisturbed())


def test_a_skipped_step_changes_neither_weights_nor_optimizer_nor_scheduler_but_counts() -> None:
    fleet = bursting("2x1")
    before, after = fleet.train(1), fleet.train(1)
    assert all(tensor.equal(before.tensors[name]) for name, tensor in after.tensors.items())
    assert after.trainer.scheduler == before.trainer.scheduler
    assert after.trainer.optimizer_groups == before.trainer.optimizer_groups
    assert after.trainer.step == 2
    assert [record.is_skipped for record in after.trainer.losses] == [False, True]
    assert after.steps[0].grad_norm == math.inf


def test_running_statistics_are_not_folded_by_a_skipped_step() -> None:
    def make(layout: str) -> Fleet:
        rows = BurstingRows(toys.regression_rows()._make, 22)
        training = toys.batch_norm_training(loss=bursting_loss, dataset=rows, shuffle=False)
        return Fleet(training, layout, precision=Precision.FP16, micro_batch_size=3)

    fleet = make("2x2")
    before, after = fleet.train(1), fleet.train(1)
    assert skipped(before) == [False]
    assert skipped(after) == [True]
    assert after.tensors["buffer:1.running_mean"].equal(before.tensors["buffer:1.running_mean"])
    alone = make("1x1")
    alone.train(1)
    assert_equal_bits(fleet.train(1), (alone.train(1), alone.train(1))[1])


@pytest.mark.parametrize("then", ["1x1", "2x2"])
def test_the_scale_is_resumed_at_any_layout(then: str) -> None:
    resumed = bursting(then)
    resumed.resume(bursting("3x1").train(2))
    ended = resumed.train(2)
    assert ended.trainer == undisturbed().trainer
    assert ended.trainer.scaler == ScalerState(
        scale=INITIAL / 4, good_steps=0, floor_steps=0, has_applied=True
    )
    assert all(tensor.equal(undisturbed().tensors[name]) for name, tensor in ended.tensors.items())


def test_the_scale_takes_no_part_in_what_is_learnt() -> None:
    fleet = bursting("2x1")
    initial = fleet.snapshot()
    lower = ScalerState(scale=INITIAL / 4, good_steps=0, floor_steps=0, has_applied=True)
    usual = fleet.train(1)
    fleet.resume(replace(initial, trainer=replace(initial.trainer, scaler=lower)))
    ended = fleet.train(1)
    assert ended.steps[0].loss_scale == INITIAL / 4
    assert ended.steps[0].grad_norm == usual.steps[0].grad_norm
    assert all(tensor.equal(ended.tensors[name]) for name, tensor in usual.tensors.items())
