"""An optimizer in memory of the host gives the bits of one on the device; here both are the CPU."""

from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor

from tests.support import toys
from tests.support.fleet import Fleet, Snapshot, assert_equal_bits
from varuna_runtime.worker.shares import Offload, offload_of

NUM_STEPS = 3


class FakeHost:
    """Memory elsewhere: what arrives there is readable only once waited for."""

    def __init__(self) -> None:
        self.num_waits = 0
        self.twins: list[Tensor] = []

    def offload(self) -> Offload:
        return Offload(twin=self.twin, arrived=self.arrived)

    def twin(self, tensor: Tensor) -> Tensor:
        self.twins.append(torch.full_like(tensor, torch.nan))
        return self.twins[-1]

    def arrived(self) -> None:
        self.num_waits += 1


def adagrad(named: Any) -> torch.optim.Optimizer:
    """Has state before its first step."""
    return torch.optim.Adagrad(list(named), initial_accumulator_value=0.1)


OPTIMIZERS = {"AdamW": toys.adamw, "Adagrad": adagrad}


@lru_cache
def alone(optimizer: str) -> Snapshot:
    return Fleet(toys.tied_training(optimizer=OPTIMIZERS[optimizer]), "1x1").train(NUM_STEPS)


def offloaded(optimizer: str, layout: str, *, shard_optimizer: bool = False) -> tuple[Fleet, FakeHost]:
    host = FakeHost()
    fleet = Fleet(
        toys.tied_training(optimizer=OPTIMIZERS[optimizer]), layout, shard_optimizer=shard_optimizer
    )
    for engine in fleet.engines:
        engine._built.optimizer.offload(host.offload())
    return fleet, host


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("layout", "shard_optimizer"), [("1x1", False), ("2x2", False), ("2x2", True)])
def test_an_offloaded_optimizer_gives_the_bits_of_one_on_the_device(
    optimizer: str, layout: str, shard_optimizer: bool
) -> None:
    fleet, host = offloaded(optimizer, layout, shard_optimizer=shard_optimizer)
    assert_equal_bits(fleet.train(NUM_STEPS), alone(optimizer))
    assert host.num_waits == NUM_STEPS * len(fleet.engines)


def test_state_lives_on_the_host_and_weights_on_the_device() -> None:
    fleet, host = offloaded("AdamW", "1x1")
    fleet.train(1)
    (engine,) = fleet.engines
    weights = {p.data_ptr() for segment in engine._built.segments for _, p in segment.parameters}
    stepped = {p.data_ptr() for p in engine._built.optimizer._optimizer.state}
    assert stepped <= {twin.data_ptr() for twin in host.twins}
    assert not stepped & weights


def test_an_offloaded_optimizer_goes_on_from_a_checkpoint_of_any_kind() -> None:
    fleet, _ = offloaded("AdamW", "1x2", shard_optimizer=True)
    fleet.resume(Fleet(toys.tied_training(), "1x1").train(1))
    assert fleet.train(NUM_STEPS - 1).tensors.keys() == alone("AdamW").tensors.keys()
    assert all(t.equal(alone("AdamW").tensors[name]) for name, t in fleet.snapshot().tensors.items())


def test_the_host_itself_needs_no_twins() -> None:
    assert offload_of(torch.device("cpu")) is None
