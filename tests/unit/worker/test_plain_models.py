"""Plain models, cut by themselves, train to the same bits on every layout, and to those of a plain loop."""

from collections.abc import Callable
from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support import plain_models as plain
from tests.support.fleet import Fleet, Snapshot, assert_equal_bits, settings_of
from tests.support.toys import momentum_sgd
from varuna_runtime.partition import PartitionedModel
from varuna_runtime.spec.layout import BatchShape
from varuna_runtime.worker.data import SampleSource
from varuna_runtime.worker.partitioning import partition_of
from varuna_runtime.worker.training import Training


class Batches:
    """Samples as dicts: what the model takes by name, and a target."""

    def __init__(self, make: Callable[[torch.Generator], dict[str, Tensor]]) -> None:
        self._make = make

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return self._make(torch.Generator().manual_seed(index))


def images(g: torch.Generator) -> dict[str, Tensor]:
    return {"x": torch.randn(3, 8, 8, generator=g)}


def pairs(g: torch.Generator) -> dict[str, Tensor]:
    source, target = (torch.randint(11, (length,), generator=g) for length in (6, 4))
    return {"target": target, "source": source.clamp(min=1), "weight": torch.rand((), generator=g)}


def rows(g: torch.Generator) -> dict[str, Tensor]:
    return {"x": torch.randn(plain.WIDTH, generator=g)}


def lengths(samples: list[dict[str, Tensor]]) -> dict[str, Tensor]:
    """Batches of another length each time."""
    tokens = torch.stack([sample["target"] for sample in samples])
    return {"tokens": tokens[:, : 2 + int(tokens.sum()) % 3]}


def squares(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return output.square().mean()


TRAININGS: dict[str, dict[str, Any]] = {
    "resnet": {"model": plain.ResNet, "dataset": Batches(images)},
    "translate": {"model": plain.Translate, "dataset": Batches(pairs)},
    "frozen": {"model": plain.Frozen, "dataset": Batches(rows)},
    "unet": {"model": plain.UNet, "dataset": Batches(rows)},
    "sized": {"model": plain.Sized, "dataset": Batches(pairs), "collate": lengths},
}


def training(name: str) -> Training:
    shared: dict[str, Any] = {
        "loss": squares,
        "optimizer": momentum_sgd,
        "batch_size": 7,
        "steps": 2,
        "clip_grad_norm": 0.5,
        "seed": 5,
    }
    return Training(**shared, **TRAININGS[name])


@cache
def model_of(name: str) -> PartitionedModel:
    return partition_of(training(name))


def trained(name: str, layout: str, **options: Any) -> Snapshot:
    return Fleet(training(name), layout, model=model_of(name), **options).train(2, seed=1)


@pytest.mark.parametrize("name", TRAININGS)
def test_every_layout_trains_to_the_bits_of_one_process(name: str):
    alone = trained(name, "1x1")
    assert_equal_bits(trained(name, "4x1", recompute=True), alone)
    assert_equal_bits(trained(name, "2x2"), alone)


def test_running_statistics_are_those_of_a_plain_loop():
    """One micro-batch a step: what the layers of the whole model would have recorded."""
    snapshot = Fleet(training("resnet"), "3x1", model=model_of("resnet"), micro_batch_size=7).train(1, seed=1)
    whole = plain.ResNet()
    whole.load_state_dict(model_of("resnet").initial_state(seed=5))
    source = training("resnet")
    batch = _first_batch(source)
    whole(batch["x"])
    for name, value in whole.named_buffers():
        torch.testing.assert_close(snapshot.tensors[f"buffer:{name}"], value, rtol=1e-6, atol=1e-7)


def _first_batch(source: Training) -> dict[str, Tensor]:
    shape = BatchShape(batch_size=7, micro_batch_size=7, virtual_replicas=1)
    found: dict[str, Tensor] = SampleSource.of(source, settings_of(source, shape)).micro_batch(0, 0, 7)
    return found


def test_evaluation_leaves_out_dropout_and_uses_running_statistics():
    model = model_of("resnet")
    cpu = torch.device("cpu")
    segments = [model.materialise(i, seed=5, device=cpu) for i in range(model.num_segments)]
    whole: nn.Module = plain.ResNet().eval()
    whole.load_state_dict(model.initial_state(seed=5))
    value: Any = torch.randn(2, 3, 8, 8)
    wanted = whole(value)
    for segment in segments:
        value = segment.eval()(*(value if isinstance(value, tuple) else (value,)))
    assert value.equal(wanted)
    frozen = model_of("frozen")
    rows_in: Any = torch.randn(2, plain.WIDTH)
    whole = plain.Frozen().eval()
    whole.load_state_dict(frozen.initial_state(seed=5))
    wanted = whole(rows_in)
    for i in range(frozen.num_segments):
        part = frozen.materialise(i, seed=5, device=cpu).eval()
        rows_in = part(*(rows_in if isinstance(rows_in, tuple) else (rows_in,)))
    assert rows_in.equal(wanted)
