"""What programs read: complete, documented, and null where nothing is known."""

import dataclasses
from pathlib import Path

import pytest

from tests.unit.cli.test_shown import RUNNING
from varuna_manager.cli.documents import job_document, node_document, plan_document, pool_document
from varuna_manager.client import (
    Copies,
    EventRecord,
    JobStatus,
    NodeStatus,
    PlanReport,
    PoolStatus,
    StepRecord,
)
from varuna_runtime.spec.layout import Infeasible

GUIDE = (Path(__file__).parents[3] / "docs" / "user-guide" / "cli.md").read_text()
NODE = NodeStatus(
    node="local-1",
    state="READY",
    reason="",
    incarnation="1f",
    slots=1,
    device_kind="cpu:avx2",
    job="",
    ranks=(),
    notice_in_s=-1.0,
    notices="file",
    pid=7,
    pool="local",
)
POOL = PoolStatus(
    pool="spot",
    provider="aws",
    running=2,
    starting=1,
    leaving=0,
    stopped=0,
    desired=3,
    wanted=4,
    min=0,
    max=8,
    price=-1.0,
    reason="",
    retry_in_s=-1.0,
    read_ago_s=2.0,
    warnings=("AZRebalance is not suspended",),
)


def test_what_a_new_job_does_not_know_is_null() -> None:
    new = dataclasses.replace(RUNNING, step=0, loss=0.0, samples_per_s=0.0, eta_s=-1.0)
    found = job_document(new)
    assert [key for key, value in found.items() if value is None] == [
        "loss",
        "samples_per_s",
        "eta_s",
        "ended_at",
        "durable_at",
    ]


def test_copies_of_which_no_step_is_known_have_none() -> None:
    copies = (Copies(job="j", generation=5, segments=(0, 1), step=-1),)
    found = node_document(dataclasses.replace(NODE, copies=copies))
    assert found["copies"] == [{"job": "j", "generation": 5, "segments": (0, 1), "step": None}]


def test_a_job_that_is_over_has_no_time_left() -> None:
    over = dataclasses.replace(RUNNING, state="SUCCEEDED", eta_s=0.0, ended_at=5.0)
    assert (job_document(over)["eta_s"], job_document(over)["ended_at"]) == (None, 5.0)


def test_a_node_without_a_notice_vanishes_at_no_time() -> None:
    assert node_document(NODE)["notice_in_s"] is None
    assert node_document(dataclasses.replace(NODE, notice_in_s=2.5))["notice_in_s"] == 2.5


def test_what_a_pool_does_not_know_is_null() -> None:
    found = pool_document(POOL)
    assert [key for key, value in found.items() if value is None] == ["price", "retry_in_s"]


def test_no_plan_is_null_with_a_reason() -> None:
    report = PlanReport(outcome=Infeasible(reason="too small", change="add 1 node"), explanation=None)
    assert plan_document(report) == {
        "plan": None,
        "reason": "too small",
        "change": "add 1 node",
        "explanation": None,
        "spread": None,
    }


@pytest.mark.parametrize("kind", [JobStatus, NodeStatus, PoolStatus, EventRecord, StepRecord])
def test_the_guide_names_every_key(kind: type) -> None:
    assert [f.name for f in dataclasses.fields(kind) if f"`{f.name}`" not in GUIDE] == []
