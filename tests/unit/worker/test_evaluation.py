"""Evaluations: when they are due, that every layout gives the same bits, and that they disturb nothing."""

import random
from dataclasses import replace
from functools import lru_cache
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support import toys
from tests.support.driver import drive
from tests.support.fleet import NO_STEP, Fleet, assert_equal_bits
from varuna_runtime.spec.errors import InvalidInput, ModelRefused
from varuna_runtime.spec.job import Precision
from varuna_runtime.spec.manifest import EvaluationRecord
from varuna_runtime.worker.arguments import check
from varuna_runtime.worker.engine import RankEngine
from varuna_runtime.worker.evaluation import Evaluation
from varuna_runtime.worker.figures import Folding, Measure
from varuna_runtime.worker.signals import Drain, EvaluationDone, Progressed, StepDone, Waiting
from varuna_runtime.worker.training import Training

HELD_OUT = 17  # samples: ragged at every size used here


class Looking:
    """Drives an engine to its end, keeps its evaluations, and may ask for things on the way."""

    def __init__(self, engine: RankEngine) -> None:
        self.engine = engine
        self.done: list[EvaluationDone] = []
        self.drain_at_op = -1
        self.num_ops = 0

    def advance(self) -> Progressed | Waiting | StepDone:
        if self.engine.is_over:
            return NO_STEP
        signal = self.engine.advance()
        self.num_ops += 1
        if self.num_ops == self.drain_at_op:
            self.engine.request(drain=Drain.DURABLE)
        if isinstance(signal, EvaluationDone):
            self.done.append(signal)
            return NO_STEP  # ends the drive of one thing
        return signal


def evaluate(fleet: Fleet, *, num: int = 1, seed: int = 0) -> list[EvaluationRecord | None]:
    """Run `num` steps or evaluations and return the records, after checking that all ranks agree."""
    ranks = [Looking(engine) for engine in fleet.engines]
    drive(fleet.network, ranks, seed=seed, num_steps=num)
    assert all(rank.done == ranks[0].done for rank in ranks)
    return [done.record for done in ranks[0].done]


def accuracy(output: Tensor, batch: tuple[Tensor, Tensor]) -> dict[str, object]:
    right = (output.argmax(-1) == batch[1]).float()
    uneven = 10.0 ** float(batch[1].sum() % 17) / 3  # added in another order, such numbers give other bits
    return {"accuracy": (right.sum(), right.numel()), "first": right[:, 0].mean(), "uneven": (uneven, 0.3)}


def tied(every_steps: int = 1, **changes: Any) -> Training:
    evaluation = Evaluation(
        dataset=toys.token_rows(HELD_OUT), every_steps=every_steps, metrics=accuracy, **changes
    )
    return toys.tied_training(evaluation=evaluation)


def with_evaluation(training: Training, **changes: Any) -> Training:
    return replace(
        training, evaluation=Evaluation(dataset=toys.regression_rows(HELD_OUT), every_steps=1, **changes)
    )


@lru_cache
def alone() -> EvaluationRecord:
    (record,) = evaluate(Fleet(tied(), "1x1"), num=2)
    assert record is not None
    return record


@pytest.mark.parametrize("layout", ["2x1", "1x2", "3x2", "1x3"])
def test_a_layout_gives_the_figures_of_one_process(layout: str) -> None:
    assert evaluate(Fleet(tied(), layout), num=2, seed=3) == [alone()]
    assert list(alone().values) == ["loss", "accuracy", "first", "uneven"]
    assert (alone().step, alone().samples) == (1, HELD_OUT)


@pytest.mark.parametrize("precision", [Precision.BF16, Precision.FP16])
def test_mixed_precision_gives_the_figures_of_one_process(precision: Precision) -> None:
    (one,) = evaluate(Fleet(tied(), "1x1", precision=precision), num=2)
    assert evaluate(Fleet(tied(), "3x2", precision=precision), num=2) == [one]


def test_the_figures_are_those_of_a_plain_loop() -> None:
    fleet = Fleet(tied(), "2x2")
    (record,) = evaluate(fleet, num=2)
    assert record is not None
    weights = {name.partition(":")[2]: t for name, t in fleet.snapshot().tensors.items()}
    whole = toys.tied_language_model()
    named = dict(whole.named_parameters())
    with torch.no_grad():
        for name, parameter in named.items():
            parameter.copy_(weights[name])
    whole.eval()
    rows = [toys.token_rows(HELD_OUT)[i] for i in range(HELD_OUT)]
    batch = (torch.stack([x for x, _ in rows]), torch.stack([y for _, y in rows]))
    with torch.no_grad():
        output: Any = (batch[0],)
        for part in whole.children():
            output = part(*output)
        total, weight = toys.token_loss(output, batch)
        found = accuracy(output, batch)
    assert record.values["loss"] == pytest.approx(float(total / weight), rel=1e-6)
    assert record.values["first"] == pytest.approx(float(found["first"]), rel=1e-6)


def test_an_evaluation_leaves_the_training_alone() -> None:
    plain, looking = Fleet(toys.mlp_training(), "2x1"), Fleet(with_evaluation(toys.mlp_training()), "2x1")
    evaluate(looking, num=4)  # two steps, two evaluations
    without = plain.train(2)
    seen = looking.snapshot(without.steps)
    assert [record.step for record in seen.trainer.evaluations] == [1, 2]
    assert_equal_bits(replace(seen, trainer=replace(seen.trainer, evaluations=())), without)


def test_dropout_is_off_and_running_statistics_are_used_and_kept() -> None:
    fleet = Fleet(with_evaluation(toys.batch_norm_training()), "2x1", micro_batch_size=3)
    before = fleet.train(1)
    first, second = Modes(), Modes()
    for engine, modes in zip(fleet.engines, (first, second), strict=True):
        modes.watch(engine)
    evaluate(fleet)
    assert first.seen == second.seen == {False}
    after = fleet.snapshot(before.steps)
    assert_equal_bits(replace(after, trainer=replace(after.trainer, evaluations=())), before)
    evaluate(fleet)  # a step
    assert True in first.seen


class Modes:
    """Notes in which modes the modules of a rank ran."""

    def __init__(self) -> None:
        self.seen: set[bool] = set()

    def watch(self, engine: RankEngine) -> None:
        for segment in engine._built.segments:
            segment.module.register_forward_pre_hook(lambda module, _: self.seen.add(module.training))


def test_a_module_that_was_in_eval_mode_stays_there() -> None:
    def frozen() -> nn.Module:
        model = toys.dropout_mlp()
        model[1].eval()
        return model

    fleet = Fleet(with_evaluation(toys.mlp_training(model=frozen)), "1x1")
    evaluate(fleet, num=2)
    modules = [segment.module for segment in fleet.engines[0]._built.segments]
    assert [all(part.training for part in module.modules()) for module in modules] == [
        True,
        False,
        True,
        True,
        True,
    ]


def test_random_numbers_of_the_data_and_the_model_are_the_same_in_every_evaluation() -> None:
    class Noisy(nn.Module):
        def forward(self, values: Tensor) -> Tensor:
            return values + torch.rand_like(values)

    def model() -> nn.Module:
        return nn.Sequential(nn.Linear(toys.WIDTH, 3), Noisy())

    def jittered(batch: tuple[Tensor, Tensor]) -> tuple[Tensor]:
        return (batch[0] * torch.rand(()) * random.random(),)

    def losses(layout: str) -> list[float]:
        training = with_evaluation(toys.mlp_training(model=model, optimizer=still), inputs=jittered)
        return [record.values["loss"] for record in evaluate(Fleet(training, layout), num=4) if record]

    assert losses("1x1") == losses("2x2")
    assert len(losses("1x1")) == 2
    assert len(set(losses("1x1"))) == 1


def still(named: Any) -> torch.optim.Optimizer:
    return torch.optim.SGD(list(named), lr=0.0)


def test_the_size_of_batches_and_the_loss_may_be_others_than_in_training() -> None:
    sizes: list[int] = []

    def absolute(output: Tensor, batch: tuple[Tensor, Tensor]) -> Tensor:
        sizes.append(len(output))
        return (output - batch[1]).abs().mean()

    training = with_evaluation(toys.mlp_training(), batch_size=7, loss=absolute)
    (record,) = evaluate(Fleet(training, "2x1"), num=2)
    assert sizes == [7, 7, 3]
    assert record is not None
    assert [figure.weight for figure in record.figures] == [HELD_OUT]


def test_micro_batches_are_added_from_left_to_right() -> None:
    folding = Folding()
    for total, weight in [(0.1, 1.0), (1e16, 1.0), (-1e16, 2.0)]:
        folding.add((Measure("x", total, weight),))
    (figure,) = folding.figures()
    assert float.fromhex(figure.value_hex) == ((0.1 + 1e16) - 1e16) / 4.0 == 0.0


# --- when ----------------------------------------------------------------------------------------------


def due_steps(evaluation: Evaluation, *, steps: int = 9) -> list[int]:
    training = toys.mlp_training(evaluation=evaluation, steps=steps)
    fleet = Fleet(training, "1x1")
    return [step for step in range(steps + 1) if evaluation.is_due(step, fleet.engines[0]._settings)]


def test_evaluations_are_due_at_their_steps_and_at_the_end() -> None:
    rows = toys.regression_rows()
    assert due_steps(Evaluation(dataset=rows, every_steps=4)) == [4, 8, 9]
    assert due_steps(Evaluation(dataset=rows)) == [9]
    # 23 samples in batches of 11: an epoch ends within steps 3, 5 and 7.
    assert due_steps(Evaluation(dataset=rows, every_epoch=True), steps=7) == [3, 5, 7]


def test_an_evaluation_that_is_in_the_checkpoint_is_not_made_again_and_one_that_is_not_is() -> None:
    first = Fleet(tied(), "2x1")
    before = first.train(1)
    records = evaluate(first)
    after = first.snapshot()
    again = Fleet(tied(), "1x2")
    again.resume(before)
    assert evaluate(again) == records
    done = Fleet(tied(), "1x2")
    done.resume(after)
    assert done.engines[0].evaluations == tuple(records)
    evaluate(done)
    assert done.engines[0].step == 2


def test_the_end_is_over_only_once_it_is_evaluated() -> None:
    fleet = Fleet(tied(every_steps=100), "2x1")
    fleet.train(3)
    assert not fleet.engines[0].is_over
    (record,) = evaluate(fleet)
    assert record is not None
    assert record.step == 3
    assert all(engine.is_over for engine in fleet.engines)


def test_a_drain_is_heard_between_rounds_and_the_evaluation_is_made_again() -> None:
    training = replace(tied(), evaluation=Evaluation(dataset=toys.token_rows(50), every_steps=1))
    fleet = Fleet(training, "2x2")
    before = fleet.train(1)
    ranks = [Looking(engine) for engine in fleet.engines]
    ranks[3].drain_at_op = 1
    drive(fleet.network, ranks, seed=0)
    assert {tuple(rank.done) for rank in ranks} == {(EvaluationDone(record=None, drain=Drain.DURABLE),)}
    assert fleet.snapshot().trainer == before.trainer
    undisturbed = Fleet(training, "1x1")
    undisturbed.train(1)
    assert evaluate(fleet) == evaluate(undisturbed)


# --- refusals ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"dataset": []}, "no samples"),
        ({"dataset": iter([1])}, "map-style"),
        ({"every_steps": 0}, "every_steps: seen 0"),
        ({"batch_size": True}, "batch_size: seen True"),
        ({"every_steps": 1, "every_epoch": True}, "one of them"),
        ({"metrics": 3}, "metrics: seen 3"),
    ],
)
def test_a_wrong_evaluation_is_refused_by_name(changes: dict[str, Any], message: str) -> None:
    evaluation = Evaluation(**({"dataset": toys.regression_rows()} | changes))
    with pytest.raises(InvalidInput, match=message):
        check(toys.mlp_training(evaluation=evaluation))


def test_something_else_than_an_evaluation_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"wanted varuna\.Evaluation"):
        check(toys.mlp_training(evaluation=toys.regression_rows()))


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (3, "metrics returned int"),
        ({"loss": 1.0}, "name 'loss'"),
        ({"wide": torch.ones(2)}, r"wide is a Tensor of shape \[2\]"),
        ({"odd": (1.0, "two")}, "odd is a str"),
    ],
)
def test_odd_metrics_are_refused_by_name(found: object, message: str) -> None:
    training = with_evaluation(toys.mlp_training(), metrics=lambda output, batch: found)
    fleet = Fleet(training, "1x1")
    fleet.train(1)
    with pytest.raises(ModelRefused, match=message):
        evaluate(fleet)


def test_numbers_of_every_kind_are_taken() -> None:
    """Those of numpy too, as packages for metrics return them."""
    found = {"a": torch.tensor([2.0]), "b": np.float32(2), "c": (np.int64(4), 2), "d": 2, "e": np.bool_(True)}
    training = with_evaluation(toys.mlp_training(), metrics=lambda output, batch: found)
    fleet = Fleet(training, "1x1")
    fleet.train(1)
    (record,) = evaluate(fleet)
    assert record is not None
    values = {name: value for name, value in record.values.items() if name != "loss"}
    assert values == {"a": 2.0, "b": 2.0, "c": 2.0, "d": 2.0, "e": 1.0}
