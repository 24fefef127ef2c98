"""The engine against a plain PyTorch loop on the uncut model: equal bits, and others in another order."""

from typing import Any

import pytest
import torch

from tests.support import toys
from tests.support.combinations import TOYS
from tests.support.fleet import Fleet, Snapshot
from tests.support.oracle import in_order
from tests.support.truth import Example, Truth, differences, truth_of

NUM_STEPS = 3
EXAMPLES = TOYS | {
    "batch norm": Example(toys.batch_norm_training, {str(i): i + 1 for i in range(4)}),
}


def both(name: str, layout: str, **changes: Any) -> tuple[Snapshot, Truth]:
    example = EXAMPLES[name]
    training = example.training(batch_size=12)
    fleet = Fleet(training, layout, micro_batch_size=2)
    truth = truth_of(example, training, fleet.model, fleet.plan.batch, NUM_STEPS, **changes)
    return fleet.train(NUM_STEPS), truth


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.parametrize("layout", ["1x1", "2x2"])
def test_losses_weights_statistics_and_optimizer_state_have_the_bits_of_the_plain_loop(
    name: str, layout: str
) -> None:
    assert differences(*both(name, layout)) == []


@pytest.mark.parametrize("name", EXAMPLES)
def test_another_order_of_the_sums_shows_in_the_bits_and_stays_within_a_millionth(name: str) -> None:
    ours, flipped = both(name, "1x1", across=in_order)
    assert any(line.startswith("param:") for line in differences(ours, flipped))
    assert [step.loss for step in ours.steps] == pytest.approx(flipped.losses, rel=1e-6)
    for key, tensor in flipped.tensors.items():
        if key.startswith("param:"):
            torch.testing.assert_close(ours.tensors[key], tensor, rtol=1e-6, atol=1e-6)
