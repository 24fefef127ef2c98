"""The tables of legal transitions and their drawing."""

from pathlib import Path

import pytest

from tests.support.core_records import MODEL, job_spec
from tests.support.phase_tables import table
from varuna_manager.core.change import Change
from varuna_manager.core.config import CoreConfig
from varuna_manager.core.events import JobSubmitted
from varuna_manager.core.phases import (
    HOLDING,
    JOB_TRANSITIONS,
    NODE_TRANSITIONS,
    TERMINAL,
    JobPhase,
    NodePhase,
)
from varuna_manager.core.state import State
from varuna_manager.core.step import step

DOC = Path(__file__).parents[3] / "docs" / "manager-states.md"


@pytest.mark.parametrize("transitions", [JOB_TRANSITIONS, NODE_TRANSITIONS], ids=["jobs", "nodes"])
def test_the_documented_table_is_the_one_in_force(transitions: object) -> None:
    assert table(transitions) in DOC.read_text()  # type: ignore[arg-type]


def test_every_phase_has_a_row() -> None:
    assert set(JOB_TRANSITIONS) == set(JobPhase)
    assert set(NODE_TRANSITIONS) == set(NodePhase)


def test_terminal_phases_are_the_three_ends() -> None:
    assert {JobPhase.SUCCEEDED, JobPhase.FAILED, JobPhase.CANCELLED} == TERMINAL
    assert not TERMINAL & HOLDING


def test_every_phase_of_a_job_is_reachable_and_leads_to_an_end() -> None:
    for start in set(JobPhase) - TERMINAL:
        assert TERMINAL & _reachable(start), start
    assert _reachable(JobPhase.PENDING) == set(JobPhase)


def _reachable(start: JobPhase) -> set[JobPhase]:
    found, frontier = {start}, [start]
    while frontier:
        new = JOB_TRANSITIONS[frontier.pop()] - found
        found |= new
        frontier += new
    return found


def test_an_illegal_transition_is_our_bug() -> None:
    submitted = JobSubmitted(
        at_s=1.0, job="j", spec=job_spec("j"), model=MODEL, bundle="b", user="ana", request_id="r"
    )
    state, _ = step(State(config=CoreConfig()), submitted)
    change = Change(state, 2.0)
    with pytest.raises(AssertionError, match="PENDING -> RUNNING"):
        change.move_job(state.jobs["j"], JobPhase.RUNNING, "")
