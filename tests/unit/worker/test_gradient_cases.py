"""Faults that users of other pipelines met in their gradients, each as a test."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from tests.support import toys
from tests.support.combinations import TOYS
from tests.support.fleet import Fleet, assert_equal_bits
from tests.support.truth import differences, truth_of
from varuna_runtime.spec.batches import replica_micro_batches
from varuna_runtime.spec.errors import ModelRefused
from varuna_runtime.spec.job import Precision
from varuna_runtime.worker.training import Training


@pytest.mark.parametrize("shard_optimizer", [False, True])
def test_a_tied_embedding_has_the_gradient_of_one_process(shard_optimizer: bool) -> None:
    """NVIDIA/Megatron-LM#844: the tied gradient was summed after the reduction over replicas."""
    example = TOYS["tied"]
    training = example.training(batch_size=12)
    fleet = Fleet(training, "2x2", shard_optimizer=shard_optimizer)
    truth = truth_of(example, training, fleet.model, fleet.plan.batch, 2)
    assert differences(fleet.train(2), truth) == []


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP16])
def test_a_mean_in_half_precision_is_weighed_in_full(precision: Precision) -> None:
    """Neither its product with the rows nor, from 257 on, the rows themselves need be a number in bf16."""
    example = replace(
        TOYS["dropout"],
        training=lambda **changes: toys.mlp_training(loss=lambda output, _: output.abs().mean(), **changes),
    )
    training = example.training()
    fleet = Fleet(training, "2x1", micro_batch_size=3, precision=precision)
    truth = truth_of(example, training, fleet.model, fleet.plan.batch, 2, precision=precision)
    assert differences(fleet.train(2), truth) == []


class Checkpointed(nn.Module):
    """A block that recomputes its own forward, as scripts have them."""

    use_reentrant: bool

    def __init__(self, last: int) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Linear(toys.WIDTH, 16), nn.Tanh(), nn.Linear(16, last))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = checkpoint(self.inner, x, use_reentrant=self.use_reentrant)
        return out


def checkpointed_training(use_reentrant: bool, first: Callable[[], nn.Module] | None = None) -> Training:
    Checkpointed.use_reentrant = use_reentrant
    make_first = first or (lambda: Checkpointed(toys.WIDTH))
    return toys.mlp_training(
        model=lambda: nn.Sequential(make_first(), Checkpointed(toys.WIDTH), Checkpointed(3)), scheduler=None
    )


@pytest.mark.parametrize("layout", ["1x1", "3x1", "3x2"])
def test_every_parameter_behind_a_checkpoint_gets_a_finite_gradient(layout: str) -> None:
    """deepspeedai/DeepSpeed#4479, NVIDIA-NeMo/Automodel#3257: gradients were lost inside a stage."""
    fleet = Fleet(checkpointed_training(use_reentrant=False), layout)
    fleet.train(1)
    found = [p.grad for e in fleet.engines for s in e._built.segments for _, p in s.parameters]
    assert len(found) == 12 * fleet.plan.layout.replicas
    assert all(g is not None and bool(g.isfinite().all()) for g in found)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")
def test_a_reentrant_checkpoint_is_an_error_and_no_lost_gradient() -> None:
    after_weights = checkpointed_training(True, lambda: nn.Linear(toys.WIDTH, toys.WIDTH))
    with pytest.raises(RuntimeError, match="use_reentrant"):
        Fleet(after_weights, "3x1").train(1)
    with pytest.raises(ModelRefused, match="does not depend on any trainable parameter"):
        Fleet(checkpointed_training(True), "3x1").train(1)


def gradients(fleet: Fleet) -> dict[str, Tensor]:
    """Final gradients of the step just done, by name."""
    held = [segment.parameters for engine in fleet.engines for segment in engine._built.segments]
    return {name: p.grad for named in held for name, p in named if p.grad is not None}


@pytest.mark.parametrize("make", [toys.tied_training, toys.mlp_training])
def test_gradients_do_not_depend_on_how_a_batch_is_split(make: Callable[..., Training]) -> None:
    """deepspeedai/DeepSpeed#7773, pytorch/torchtitan#1733: sums were scaled twice when accumulated."""
    changes: dict[str, Any] = {"batch_size": 32, "clip_grad_norm": None}
    if make is toys.mlp_training:
        changes["model"] = lambda: nn.Sequential(nn.Linear(toys.WIDTH, 16), nn.Tanh(), nn.Linear(16, 3))
    else:
        changes["model"] = lambda: without_dropout(toys.tied_language_model())
    whole = Fleet(make(**changes), "1x1", micro_batch_size=32, virtual_replicas=1)
    loss = whole.train(1).steps[0].loss
    shares = [len(run) for run in replica_micro_batches(16, 8, 3, 0)], replica_micro_batches(16, 8, 3, 2)
    assert sum(shares[0]) != sum(len(run) for run in shares[1])  # replicas of 1x3 differ in their number
    for size, layout, virtual in [(8, "1x1", 4), (2, "2x1", 16), (2, "1x3", 8)]:
        fleet = Fleet(make(**changes), layout, micro_batch_size=size, virtual_replicas=virtual)
        assert fleet.train(1).steps[0].loss == pytest.approx(loss, rel=1e-6)
        torch.testing.assert_close(gradients(fleet), gradients(whole), rtol=1e-5, atol=1e-6)


def without_dropout(model: nn.Module) -> nn.Module:
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    return model


@pytest.mark.parametrize("is_frozen", [False, True])
@pytest.mark.parametrize("shard_optimizer", [False, True])
def test_a_stage_that_is_an_embedding_only_takes_part_in_the_norm(
    is_frozen: bool, shard_optimizer: bool
) -> None:
    """deepspeedai/DeepSpeed#1522: such a stage, or one without gradients, hung in the norm."""

    def model() -> nn.Module:
        built = nn.Sequential(
            nn.Embedding(toys.VOCABULARY, toys.WIDTH), nn.Linear(toys.WIDTH, toys.VOCABULARY)
        )
        built[0].requires_grad_(not is_frozen)
        return built

    training = toys.tied_training(model=model, clip_grad_norm=0.1)
    fleet = Fleet(training, "2x2", shard_optimizer=shard_optimizer)
    assert_equal_bits(fleet.train(2), Fleet(training, "1x1").train(2))
