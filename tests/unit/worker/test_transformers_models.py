"""Unmodified transformers models, cut by themselves, train to the same bits on every layout."""

from functools import cache

import pytest

from tests.support.fleet import Fleet, Snapshot, assert_equal_bits
from tests.support.transformers_models import training
from varuna_runtime.partition import PartitionedModel
from varuna_runtime.spec.layout import ScheduleKind
from varuna_runtime.worker.partitioning import partition_of


@cache
def model_of(name: str) -> PartitionedModel:
    return partition_of(training(name, dropout=True))


def trained(name: str, layout: str, **options: object) -> Snapshot:
    fleet = Fleet(training(name, dropout=True), layout, model=model_of(name), **options)  # type: ignore[arg-type]
    return fleet.train(2, seed=1)


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama", "t5"])
def test_every_layout_trains_to_the_bits_of_one_process(name: str):
    alone = trained(name, "1x1")
    last = model_of(name).num_segments
    assert last >= 3
    assert_equal_bits(trained(name, f"{last}x1", recompute=True), alone)
    assert_equal_bits(trained(name, "2x2", schedule=ScheduleKind.GPIPE), alone)
