"""Unmodified transformers models, cut by themselves, train to the same bits on every layout."""

from functools import cache

import pytest
import torch
from torch import Tensor
from torch.utils.data import default_collate

from tests.support.fleet import Fleet, Snapshot, assert_equal_bits
from tests.support.recomposing import of_segments, of_whole, twin
from tests.support.transformers_models import MODELS, Sentences, training
from varuna_runtime.partition import PartitionedModel
from varuna_runtime.spec.job import Precision
from varuna_runtime.spec.layout import ScheduleKind
from varuna_runtime.worker.evaluation import Evaluation
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


@pytest.mark.parametrize("name", ["gpt2", "bert", "llama", "t5"])
@pytest.mark.parametrize(("rows", "length"), [(2, 9), (1, 7), (3, 12)])
def test_segments_compute_the_bits_of_the_whole_model(name: str, rows: int, length: int):
    """Whatever the sizes: outputs with dropout, and the gradient of every parameter."""
    model, whole = model_of(name), MODELS[name]()
    segments = twin(model, whole)
    held = Sentences(sequence=length)
    batch = default_collate([held[i + 1] for i in range(rows)])  # the last sample is padded in each
    outputs, gradients = of_whole(whole, batch, seed=rows)
    cut_outputs, cut_gradients = of_segments(
        segments, [batch[k] for k in model.arguments.keywords], seed=rows
    )
    assert all(a.equal(b) for a, b in zip(outputs[:2], cut_outputs[:2], strict=True))
    folded = {tie.uses[0].name for tie in model.tied if len(tie.uses) > 2}  # in an order of their own
    for key, gradient in gradients.items():
        other = cut_gradients[key]
        assert gradient is not None
        assert other is not None
        assert other.equal(gradient) or key in folded, key
    assert len(folded) == (name == "t5")


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP16])
def test_mixed_precision_trains_to_the_bits_of_one_process(precision: Precision):
    alone = trained("gpt2", "1x1", precision=precision)
    assert_equal_bits(trained("gpt2", "2x2", recompute=True, precision=precision), alone)


# --- evaluation: the models were traced in training, and their dropout must follow the mode ---------------

HELD_OUT = Sentences(length=7)


@pytest.mark.parametrize("name", ["gpt2", "bert"])
def test_a_traced_model_is_evaluated_as_the_plain_one_in_eval_mode(name: str):
    watched = training(name, dropout=True, evaluation=Evaluation(dataset=HELD_OUT))
    fleet = Fleet(watched, "2x2", model=model_of(name))
    weights = fleet.train(2).tensors
    while not all(engine.is_over for engine in fleet.engines):
        for engine in fleet.engines:
            if not engine.is_over:
                engine.advance()
    (record,) = {engine.evaluations[-1] for engine in fleet.engines}
    assert record.values["loss"] == pytest.approx(plain_loss(name, weights), rel=1e-6)


def plain_loss(name: str, tensors: dict[str, Tensor]) -> float:
    model = MODELS[name]().eval()
    weights = {n.removeprefix("param:"): tensor for n, tensor in tensors.items() if n.startswith("param:")}
    assert not model.load_state_dict(weights, strict=False).unexpected_keys
    total = 0.0
    with torch.no_grad():
        for first in range(0, len(HELD_OUT), 2):
            rows = [HELD_OUT[i] for i in range(first, min(first + 2, len(HELD_OUT)))]
            total += float(model(**default_collate(rows)).loss) * len(rows)
    return total / len(HELD_OUT)
