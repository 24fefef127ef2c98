"""The stage's ops on their own, without link or schedule."""

import torch

from tests.support import toys
from tests.support.fleet import plan_of, settings_of
from varuna_runtime.partition import cut
from varuna_runtime.spec.layout import BatchShape
from varuna_runtime.worker.build import BuiltStage, build_stage
from varuna_runtime.worker.stage import MicroBatch

BATCH = BatchShape(batch_size=4, micro_batch_size=1, virtual_replicas=4)


def whole_model() -> BuiltStage:
    training = toys.mlp_training()
    model = cut(training.model)
    plan = plan_of("1x1", num_segments=model.num_segments, batch=BATCH)
    return build_stage(training, settings_of(training, BATCH), model, plan.stages[0], torch.device("cpu"))


def micro(index: int) -> MicroBatch:
    return MicroBatch(step=0, index=index, rows=1, virtual_replica=index, ends_virtual_replica=True)


def test_a_segment_is_told_done_once_its_sums_are_complete_last_segment_first() -> None:
    built, told = whole_model(), []
    batch = (torch.ones(1, toys.WIDTH), torch.ones(1, 3))
    built.runner.begin(4, range(2, 4), on_done=told.append)
    for index in (2, 3):
        assert told == []
        built.runner.forward(micro(index), (batch[0],), batch)
        built.runner.backward(micro(index), None)
    assert told == [4, 3, 2, 1, 0]
    assert all(len(accumulator.nodes()) == 1 for accumulator in built.accumulators)


def test_no_segment_is_told_done_where_no_virtual_replica_is_owned() -> None:
    built, told = whole_model(), []
    built.runner.begin(4, range(2, 2), on_done=told.append)
    assert told == []
