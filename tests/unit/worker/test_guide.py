"""The user guide explains what a script can name, and the architecture shows `train` as it is."""

import dataclasses
import inspect
import re
from pathlib import Path

import pytest

import varuna_runtime as varuna

DOCS = Path(__file__).parents[3] / "docs"
GUIDE = (DOCS / "user-guide" / "bring-your-model.md").read_text()
PARAMETERS = list(inspect.signature(varuna.train).parameters)
RECORDS = [varuna.Evaluation, varuna.Result, varuna.StepReport, varuna.EvaluationReport]


def is_explained(name: str) -> bool:
    return re.search(rf"`{name}`|`{name}[(=]|[ (`]{name}=|varuna\.{name}\b", GUIDE) is not None


@pytest.mark.parametrize("name", sorted(set(varuna.__all__) - {"Training"}))
def test_every_public_name_is_explained(name: str):
    assert is_explained(name)


@pytest.mark.parametrize("name", PARAMETERS)
def test_every_argument_of_train_is_explained(name: str):
    assert is_explained(name)


@pytest.mark.parametrize("record", RECORDS, ids=lambda record: record.__name__)
def test_every_field_of_what_a_script_makes_or_gets_is_explained(record: type):
    assert [f.name for f in dataclasses.fields(record) if not is_explained(f.name)] == []  # type: ignore[arg-type]


def test_the_architecture_shows_every_argument_of_train():
    (shown,) = re.findall(
        r"    varuna\.train\(\n(.*?)\n    \)\n", (DOCS / "architecture.md").read_text(), re.DOTALL
    )
    assert re.findall(r"^ +(\w+)=", shown, re.MULTILINE) == PARAMETERS
