"""Figures on their way from an agent's message to a client."""

import math

import pytest

from varuna_manager.rpc import metrics
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.reports import EvaluationReport, StepReport
from varuna_runtime.wire.v1 import agent_pb2, common_pb2

SKIPPED = common_pb2.StepDone(
    step=4,
    loss_hex="inf",
    loss=math.inf,
    samples=8,
    step_s=0.5,
    learning_rate=0.1,
    loss_scale=2.0,
    skipped=True,
)


def evaluation(**changes: object) -> common_pb2.EvaluationDone:
    figure = common_pb2.Figure(name="loss", value_hex=(0.1).hex(), weight=3.0)
    return common_pb2.EvaluationDone(
        **({"step": 5, "generation": 2, "samples": 3, "figures": [figure]} | changes)
    )


def test_a_step_reaches_a_client_as_it_was_told() -> None:
    report = agent_pb2.StepReport(job="j", generation=3, steps=[SKIPPED])
    (row,) = metrics.step_rows(report, at_s=7.0)
    found = metrics.metric_of(metrics.record(row))
    assert (found.generation, found.at) == (3, 7.0)
    assert found.report == StepReport(
        step=5,
        loss=math.inf,
        grad_norm=None,
        learning_rate=0.1,
        loss_scale=2.0,
        is_skipped=True,
        samples=8,
        step_s=0.5,
    )


def test_an_evaluation_reaches_a_client_with_every_bit() -> None:
    found = metrics.metric_of(metrics.record(metrics.evaluation_row(evaluation(), "j", at_s=7.0)))
    assert found.report == EvaluationReport(step=5, samples=3, values={"loss": 0.1})


def test_what_a_checkpoint_knows_is_kept_under_the_generation_that_made_it() -> None:
    committed = common_pb2.CommittedStep(generation=1, step=SKIPPED)
    lone = common_pb2.CommittedStep(generation=0, step=SKIPPED)
    active = agent_pb2.Active(step=5, earlier=[committed, lone], evaluations=[evaluation()])
    rows = metrics.earlier_rows(agent_pb2.RankReport(job="j", generation=9, active=active), at_s=1.0)
    assert [(row.step, row.is_evaluation, row.generation) for row in rows] == [(5, False, 1), (5, True, 2)]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": -1}, "step: seen -1"),
        ({"figures": [common_pb2.Figure(name="loss", value_hex="one")]}, "after step 5"),
        ({"figures": [common_pb2.Figure(name="x" * 100_000, value_hex="0x1p+0")]}, "wanted at most"),
    ],
)
def test_an_odd_evaluation_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        metrics.evaluation_row(evaluation(**changes), "j", at_s=1.0)
