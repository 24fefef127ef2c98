"""The engine against a plain PyTorch loop: equal bits where the order of sums coincides, else within 1e-6."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support import toys
from tests.support.fleet import Fleet, Snapshot
from tests.support.oracle import Oracle, in_order
from varuna_runtime.spec.rng import forward_key
from varuna_runtime.worker.data import SampleSource
from varuna_runtime.worker.training import Training

NUM_STEPS = 3


def oracle_of(training: Training, fleet: Fleet, **changes: Any) -> Oracle:
    """Build the whole model with the initial weights of the job, and untie what is tied."""
    initial = fleet.model.initial_state(seed=training.seed)
    model = training.model()
    assert isinstance(model, nn.Module)
    parts = list(model.children())
    copies = {}
    if isinstance(parts[-1], toys.TiedHead):
        parts[-1].weight = nn.Parameter(parts[-1].weight.detach().clone())
        copies = {"3.weight": "0.table.weight"}
    named = {f"{i}.{n}": p for i, part in enumerate(parts) for n, p in part.named_parameters()}
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(initial[copies.get(name, name)])
    optimizer = training.optimizer([(copies.get(n, n), p) for n, p in named.items()])
    settings: dict[str, Any] = {
        "parts": parts,
        "loss": training.loss,
        "optimizer": optimizer,
        "keys": lambda step, micro, segment: forward_key(
            seed=training.seed, step=step, micro_batch=micro, segment=segment
        ),
        "virtual_replicas": fleet.plan.batch.virtual_replicas,
        "clip": training.clip_grad_norm,
        "scheduler": training.scheduler and training.scheduler(optimizer),
        "copies": copies,
    }
    return Oracle(**(settings | changes))


def train_oracle(oracle: Oracle, training: Training, fleet: Fleet) -> list[float]:
    size = fleet.plan.batch.micro_batch_size
    source = SampleSource(
        training.dataset,
        collate=None,
        seed=training.seed,
        shuffle=True,
        batch_size=training.batch_size,
        total_samples=None,
    )
    num_micro = -(-training.batch_size // size)
    return [
        oracle.train_step(step, [source.micro_batch(step, i, size) for i in range(num_micro)])
        for step in range(NUM_STEPS)
    ]


def both(
    make: Callable[[], Training], layout: str, *, micro_batch_size: int = 2, **changes: Any
) -> tuple[Snapshot, list[float], dict[str, Tensor]]:
    training = make()
    fleet = Fleet(training, layout, micro_batch_size=micro_batch_size)
    oracle = oracle_of(training, fleet, **changes)
    losses = train_oracle(oracle, training, fleet)
    return fleet.train(NUM_STEPS), losses, {f"param:{n}": p.detach() for n, p in oracle.named().items()}


@pytest.mark.parametrize("layout", ["1x1", "2x2"])
def test_a_chain_of_segments_has_the_bits_of_the_plain_loop(layout: str) -> None:
    ours, losses, weights = both(toys.mlp_training, layout)
    assert [step.loss for step in ours.steps] == losses
    assert all(ours.tensors[name].equal(weight) for name, weight in weights.items())


@pytest.mark.parametrize(
    ("make", "micro_batch_size"), [(toys.tied_training, 2), (toys.batch_norm_training, 3)]
)
@pytest.mark.parametrize("layout", ["1x1", "2x2"])
def test_shared_tensors_and_statistics_stay_within_a_millionth_of_the_plain_loop(
    make: Callable[[], Training], micro_batch_size: int, layout: str
) -> None:
    ours, losses, weights = both(make, layout, micro_batch_size=micro_batch_size)
    assert [step.loss for step in ours.steps] == pytest.approx(losses, rel=1e-6)
    for name, weight in weights.items():
        torch.testing.assert_close(ours.tensors.get(name, weight), weight, rtol=1e-6, atol=1e-6)


def test_running_statistics_follow_the_micro_batches_as_in_the_plain_loop() -> None:
    training = toys.batch_norm_training()
    fleet = Fleet(training, "2x2", micro_batch_size=3)
    oracle = oracle_of(training, fleet)
    train_oracle(oracle, training, fleet)
    ours = fleet.train(NUM_STEPS)
    for i in (1, 3):
        for name, buffer in oracle.parts[i].named_buffers():
            torch.testing.assert_close(ours.tensors[f"buffer:{i}.{name}"], buffer, rtol=1e-6, atol=1e-6)


def test_another_order_of_the_sums_shows_in_the_bits() -> None:
    ours, _, weights = both(toys.mlp_training, "1x1", across=in_order)
    assert not all(ours.tensors[name].equal(weight) for name, weight in weights.items())
