"""Forwards cut at their marks, and streams, give the same bits on every layout and after a change of it."""

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support import toys
from tests.support.fleet import Fleet, Snapshot, assert_equal_bits
from varuna_runtime.partition import CutPoint
from varuna_runtime.worker.data import SampleSource
from varuna_runtime.worker.training import Training, resolve


class Decoder(nn.Module):
    """A skip connection and a mask across the marks, a layer used on both sides, dropout, a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(toys.VOCABULARY, toys.WIDTH)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(toys.WIDTH, toys.WIDTH), nn.GELU(), nn.Dropout(0.2)) for _ in range(3)
        )
        self.shared = nn.Linear(toys.WIDTH, toys.WIDTH)
        self.head = nn.Linear(toys.WIDTH, toys.VOCABULARY, bias=False)
        self.head.weight = self.table.weight
        self.register_buffer("scale", torch.linspace(0.5, 1.5, toys.WIDTH))
        self.mark = CutPoint()

    def forward(self, tokens: Tensor) -> Tensor:
        skip = hidden = self.table(tokens)
        mask = (tokens % 2).unsqueeze(-1)
        for block in self.blocks:
            hidden = self.mark(self.shared(block(hidden)) + mask * skip)
        return self.head(functional.layer_norm(hidden, (toys.WIDTH,)) * self.scale)


class TokenStream:
    """Sentences of drawn numbers; the cursor is the number of the next one."""

    def __len__(self) -> int:
        return 1_000_000

    def open(self, cursor: int | None) -> Iterator[tuple[Any, int]]:
        number = cursor or 0
        while True:
            drawn = torch.randint(toys.VOCABULARY, (6,))
            drawn[0] = number % toys.VOCABULARY
            number += 1
            yield (drawn[:-1], drawn[1:]), number


def marked_training() -> Training:
    return toys.tied_training(model=Decoder)


def stream_training() -> Training:
    return toys.tied_training(dataset=TokenStream())


TRAININGS = {"marked": marked_training, "stream": stream_training}


@lru_cache
def alone(kind: str) -> Snapshot:
    return Fleet(TRAININGS[kind](), "1x1").train(3)


@pytest.mark.parametrize("kind", TRAININGS)
@pytest.mark.parametrize("layout", ["2x1", "4x1", "1x3", "2x3"])
def test_a_layout_gives_the_bits_of_one_process(kind: str, layout: str):
    assert_equal_bits(Fleet(TRAININGS[kind](), layout).train(3, seed=1), alone(kind))


@pytest.mark.parametrize("kind", TRAININGS)
def test_a_change_of_layout_gives_the_bits_of_an_undisturbed_run(kind: str):
    resumed = Fleet(TRAININGS[kind](), "3x1")
    resumed.resume(Fleet(TRAININGS[kind](), "2x2").train(1))
    assert_equal_bits_of_state(resumed.train(2), alone(kind))


def assert_equal_bits_of_state(ran: Snapshot, wanted: Snapshot) -> None:
    assert ran.tensors.keys() == wanted.tensors.keys()
    assert all(tensor.equal(wanted.tensors[name]) for name, tensor in ran.tensors.items())
    assert ran.trainer == wanted.trainer


def test_a_marked_forward_trains_like_the_plain_module_where_no_sum_differs():
    """One sample a step leaves no order of sums to choose; what is left is rounding."""
    training = toys.tied_training(model=NoDropout, batch_size=1, steps=2)
    fleet = Fleet(training, "2x1", micro_batch_size=1, virtual_replicas=1)
    plain = NoDropout()
    plain.load_state_dict(fleet.model.initial_state(seed=5), strict=False)
    optimizer = toys.adamw(plain.named_parameters())
    source = SampleSource.of(training, resolve(training, None))
    steps = fleet.train(2)
    for step in range(2):
        batch = source.micro_batch(step, 0, 1)
        total, weight = toys.token_loss(plain(batch[0]), batch)
        optimizer.zero_grad()
        (total / weight).backward()
        nn.utils.clip_grad_norm_(plain.parameters(), 0.5)
        optimizer.step()
    for name, parameter in plain.named_parameters():
        assert torch.allclose(parameter, steps.tensors[f"param:{name}"], atol=1e-6), name


class NoDropout(Decoder):
    def __init__(self) -> None:
        super().__init__()
        for block in self.blocks:
            block[2] = nn.Identity()
