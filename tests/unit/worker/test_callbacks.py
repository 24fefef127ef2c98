"""What a script hears of its training, and the files it may have written."""

import json
import math
from pathlib import Path
from typing import Any

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tests.support import toys
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.reports import EvaluationReport, Report, StepReport
from varuna_runtime.worker.arguments import check
from varuna_runtime.worker.callbacks import Callbacks, JsonLines, TensorBoard
from varuna_runtime.worker.evaluation import Evaluation
from varuna_runtime.worker.lone import LoneHost


def step(number: int, **changes: Any) -> StepReport:
    figures = {
        "loss": 0.5,
        "grad_norm": 1.0,
        "learning_rate": 0.1,
        "loss_scale": 1.0,
        "is_skipped": False,
        "samples": 8,
        "step_s": 0.25,
    }
    return StepReport(step=number, **(figures | changes))


def evaluated(number: int) -> EvaluationReport:
    return EvaluationReport(step=number, samples=3, values={"loss": 0.25, "odd": math.nan})


class Hearing:
    def __init__(self) -> None:
        self.heard: list[object] = []

    def on_step(self, report: StepReport) -> None:
        self.heard.append(report)

    def close(self) -> None:
        self.heard.append("closed")


def test_a_function_hears_everything_and_an_object_what_it_has_methods_for() -> None:
    everything: list[Report] = []
    hearing = Hearing()
    callbacks = Callbacks([everything.append, hearing])
    callbacks.tell(step(1))
    callbacks.tell(evaluated(1))
    callbacks.close()
    assert everything == [step(1), evaluated(1)]
    assert hearing.heard == [step(1), "closed"]


@pytest.mark.parametrize("callbacks", [print, [3], [Hearing]])
def test_what_cannot_be_called_is_refused(callbacks: Any) -> None:
    with pytest.raises(InvalidInput, match="callbacks: seen"):
        check(toys.mlp_training(callbacks=callbacks))


def test_lines_of_json_replace_what_is_told_again(tmp_path: Path) -> None:
    path = tmp_path / "new" / "lines.jsonl"
    first = JsonLines(path)
    for number in (1, 2, 3):
        first.on_step(step(number))
        first.on_evaluation(evaluated(number))
    first.close()
    with path.open("a") as file:
        file.write('{"kind": "st')  # torn by a crash
    again = JsonLines(path)
    again.on_evaluation(evaluated(2))
    again.on_step(step(3))
    again.close()
    found = [json.loads(line) for line in path.read_text().splitlines()]
    assert [(line["kind"], line["step"]) for line in found] == [
        ("step", 1),
        ("evaluation", 1),
        ("step", 2),
        ("evaluation", 2),
        ("step", 3),
    ]
    assert found[-1]["samples_per_s"] == 32.0
    assert found[-2]["values"] == {"loss": 0.25, "odd": None}


def test_tensorboard_files_hold_the_figures_and_forget_what_is_told_again(tmp_path: Path) -> None:
    first = TensorBoard(tmp_path / "runs")
    first.on_step(step(1, loss=9.0))
    first.on_step(step(2, loss=9.0, grad_norm=None))
    first.close()
    again = TensorBoard(tmp_path / "runs")
    again.on_step(step(2, loss=4.0))
    again.on_evaluation(evaluated(2))
    again.close()
    found = EventAccumulator(str(tmp_path / "runs")).Reload()
    assert [(e.step, e.value) for e in found.Scalars("train/loss")] == [(1, 9.0), (2, 4.0)]
    assert [(e.step, e.value) for e in found.Scalars("evaluation/loss")] == [(2, 0.25)]
    assert "evaluation/odd" not in found.Tags()["scalars"]


def test_a_lone_run_tells_its_callbacks_and_returns_its_evaluations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VARUNA_JOB", raising=False)
    heard: list[Report] = []
    lines: list[str] = []
    evaluation = Evaluation(dataset=toys.token_rows(9), every_steps=2)
    training = toys.tied_training(steps=3, evaluation=evaluation, callbacks=[heard.append])
    result = LoneHost(lines.append).run(training)
    assert [(type(report), report.step) for report in heard] == [
        (StepReport, 1),
        (StepReport, 2),
        (EvaluationReport, 2),
        (StepReport, 3),
        (EvaluationReport, 3),
    ]
    assert [report for report in heard if isinstance(report, EvaluationReport)] == list(result.evaluations)
    assert len(result.losses) == 3
    assert lines[-1].startswith("evaluation after step 3  loss ")


def test_a_lone_run_that_fails_closes_its_callbacks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Or the last figures before the fault would be lost, which are those that one looks for."""
    monkeypatch.delenv("VARUNA_JOB", raising=False)
    heard: list[str] = []

    class Held:
        def on_step(self, report: StepReport) -> None:
            heard.append(f"step {report.step}")
            if report.step == 2:
                raise ValueError("no more of this")

        def close(self) -> None:
            heard.append("closed")

    with pytest.raises(ValueError, match="no more of this"):
        LoneHost(lambda line: None).run(toys.tied_training(steps=3, callbacks=[Held()]))
    assert heard == ["step 1", "step 2", "closed"]
