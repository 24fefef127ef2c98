"""Policies out of files."""

import pytest

from varuna_manager.core.config import CoreConfig
from varuna_manager.whatif import Costs, Ours, Paper
from varuna_manager.whatif.policyfile import parse_policy
from varuna_runtime.spec.job import Objective

OURS, PAPER = Ours(costs=Costs(morph_s=2.0)), Paper(costs=Costs(morph_s=12.0))


def parsed(text: str) -> object:
    return parse_policy(text, source="p.yaml", ours=OURS, paper=PAPER)


def test_a_file_says_what_differs() -> None:
    text = "name: eager\nlike: ours\ncosts:\n  morph_s: 5\ncore:\n  growth_min_gain: 0.0\n"
    assert parsed(text) == Ours(name="eager", costs=Costs(morph_s=5.0), core=CoreConfig(growth_min_gain=0.0))


def test_json_is_read_too() -> None:
    assert parsed('{"name": "quick", "like": "paper", "costs": {"morph_s": 1.5}}') == Paper(
        name="quick", costs=Costs(morph_s=1.5)
    )


def test_mistakes_are_told_with_their_lines() -> None:
    found = parsed("name: eager\nlike: ours\ncore:\n  growth_min_gian: 0.0\n")
    assert isinstance(found, tuple)
    assert "growth_min_gain" in str(found[0])
    assert "p.yaml:4" in str(found[0])


def test_a_file_may_name_the_objective() -> None:
    found = parsed("name: careful\nlike: ours\nobjective: progress\n")
    assert found == Ours(name="careful", objective=Objective.PROGRESS, costs=Costs(morph_s=2.0))


@pytest.mark.parametrize("what", ["core:\n  lease_s: 3", "objective: cost"])
def test_the_paper_has_neither_thresholds_of_the_core_nor_an_objective(what: str) -> None:
    found = parsed(f"name: quick\nlike: paper\n{what}\n")
    assert isinstance(found, tuple)
    assert "like: ours" in str(found[0])
