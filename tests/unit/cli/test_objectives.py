"""How a plan tells what it was chosen by, and which losses the options ask for."""

from dataclasses import replace
from pathlib import Path

import click
import pytest

from tests.support.planning import UNEVEN, job, nodes, planned, request
from varuna_manager.cli.documents import plan_document
from varuna_manager.cli.objectives import losses_of, objective_lines
from varuna_manager.cli.plan import show
from varuna_manager.client import PlanReport
from varuna_manager.planner import PlanRequest
from varuna_manager.planner.outlook import LossRate, Outlook
from varuna_runtime.spec.job import Objective


def asked(objective: str, **fields: object) -> PlanRequest:
    priced = tuple(replace(node, price_per_hour=0.5) for node in nodes(4))
    return replace(request(job(objective=objective), UNEVEN, priced), **fields)  # type: ignore[arg-type]


def test_each_objective_tells_its_value_in_its_own_unit() -> None:
    made, why = planned(asked("throughput"))
    assert list(objective_lines(why)) == [f"objective throughput: {64 / made.predicted_step_s:.3g} samples/s"]
    assert "samples per dollar" in next(objective_lines(planned(asked("cost"))[1]))
    assert list(objective_lines(replace(why, value=0.0))) == [], "of a manager that did not tell"


def test_progress_tells_the_losses_it_reckons_with() -> None:
    outlook = Outlook(
        losses=LossRate(per_node_s=1 / 7200, burst_weights=(1.0, 1.0)), horizon_s=600.0, morph_s=3.0
    )
    value, losses = objective_lines(planned(asked("progress", outlook=outlook))[1])
    assert value.endswith("samples expected in the next 10 m 0 s")
    assert losses == (
        "each node is lost once in 2 h 0 m, 1.5 at a time in the mean; training then pauses for 3.0 s"
    )
    none = replace(outlook, losses=LossRate(per_node_s=0.0))
    assert list(objective_lines(planned(asked("progress", outlook=none))[1]))[1] == (
        "no node is expected to be lost"
    )


def test_the_plan_and_its_document_name_the_objective(capsys: pytest.CaptureFixture[str]) -> None:
    made, why = planned(asked("cost"))
    report = PlanReport(outcome=made, explanation=why)
    assert show(report, as_json=False) == 0
    assert "objective cost: " in capsys.readouterr().out
    document = plan_document(report)["explanation"]
    assert (document["objective"], document["value"], document["outlook"]) == ("cost", why.value, None)


def test_losses_come_from_a_rate_an_hour_or_from_a_recording(tmp_path: Path) -> None:
    assert losses_of(Objective.PROGRESS, 0.5, None) == LossRate(per_node_s=0.5 / 3600)
    assert losses_of(Objective.PROGRESS, None, None) is None
    pool = tmp_path / "pool.csv"
    pool.write_text("0,add,a\n0,add,b\n0,add,c\n3600000,remove,a\n3600000,remove,b\n7200000,remove,c\n")
    found = losses_of(Objective.PROGRESS, None, pool)
    assert found is not None
    assert found.per_node_s == pytest.approx(3.1 / (5 * 3600))
    assert found.burst_weights == (2.0, 1.0)


@pytest.mark.parametrize(
    ("objective", "per_hour", "recording"),
    [(None, 0.5, None), (Objective.COST, None, Path("x")), (Objective.PROGRESS, 0.5, Path("x"))],
)
def test_losses_are_for_progress_and_said_once(
    objective: Objective | None, per_hour: float | None, recording: Path | None
) -> None:
    with pytest.raises(click.UsageError):
        losses_of(objective, per_hour, recording)
