"""The pictures that `varuna plan` writes."""

import json
from pathlib import Path

import pytest

from tests.support.planning import UNEVEN, job, nodes, planned, request
from varuna_manager.cli.plan import draw
from varuna_manager.client import PlanReport
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.layout import Infeasible


def test_a_plan_is_drawn_as_it_was_simulated(tmp_path: Path) -> None:
    made, why = planned(request(job(), UNEVEN, nodes(4)))
    trace, picture = tmp_path / "step.json", tmp_path / "step.svg"
    draw(PlanReport(outcome=made, explanation=why), trace, picture)
    spans = [event for event in json.loads(trace.read_text())["traceEvents"] if event["ph"] == "X"]
    assert max(span["ts"] + span["dur"] for span in spans) <= made.predicted_step_s * 1e6
    assert f"{made.layout}, {made.schedule}" in picture.read_text()


def test_without_a_plan_nothing_is_drawn(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    draw(PlanReport(outcome=Infeasible(reason="too small"), explanation=None), tmp_path / "step.json", None)
    assert "nothing to draw" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_picture_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    made, why = planned(request(job(), UNEVEN, nodes(2)))
    report = PlanReport(outcome=made, explanation=why)
    nowhere = tmp_path / "none" / "step"
    for trace, picture in ((nowhere, None), (None, nowhere)):
        with pytest.raises(InvalidInput, match=r"none/step: the (trace|picture) cannot be written: no such"):
            draw(report, trace, picture)
