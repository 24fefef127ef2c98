"""How numbers, jobs and events look."""

import dataclasses
import math

import pytest

from varuna_manager.cli.nodes import held_text
from varuna_manager.cli.output import finite, seconds
from varuna_manager.cli.plain import plain
from varuna_manager.cli.progress import event_line, full_reason, progress_line
from varuna_manager.cli.status import steps_text
from varuna_manager.cli.tables import table
from varuna_manager.client import Copies, EventRecord, JobStatus
from varuna_runtime.spec.amounts import size

RUNNING = JobStatus(
    job="gpt-1",
    name="gpt",
    state="RUNNING",
    reason="",
    generation=3,
    layout="2x2",
    nodes=4,
    step=50,
    durable_step=40,
    num_steps=200,
    loss=2.5,
    samples_per_s=128.04,
    eta_s=75.0,
    submitted_at=0.0,
    ended_at=0.0,
    replayed_steps=0,
    weights_sha256="",
    user="me",
    morphs=1,
    recoverable_step=50,
    durable_at=0.0,
)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.0123, "12 ms"),
        (1.25, "1.2 s"),
        (75, "75 s"),
        (200, "3 m 20 s"),
        (9000, "2 h 30 m"),
        (-1, "?"),
        (math.inf, "?"),
    ],
)
def test_a_duration_has_useful_digits(value: float, text: str) -> None:
    assert seconds(value) == text


@pytest.mark.parametrize(
    ("value", "text"),
    [(5, "5 B"), (2048, "2 KiB"), (5 * 2**30, "5 GiB"), (1023 * 2**20, "1023 MiB"), (2**50, "1024 TiB")],
)
def test_a_size_has_a_unit(value: int, text: str) -> None:
    assert size(value) == text


def test_json_has_no_numbers_that_json_lacks() -> None:
    assert finite({"a": [1.0, math.nan], "b": (math.inf,)}) == {"a": [1.0, None], "b": [None]}


def test_a_running_job_shows_speed_layout_and_time_left() -> None:
    step, layout = "step 50/200 (25%)  loss 2.5000  128.0 samples/s", "layout 2x2 on 4 nodes  generation 3"
    assert progress_line(RUNNING) == f"RUNNING  {step}  {layout}  ETA 75 s"


def test_a_waiting_job_shows_its_reason() -> None:
    parked = dataclasses.replace(
        RUNNING, state="PARKED", reason="no nodes", layout="", eta_s=-1, samples_per_s=0
    )
    assert progress_line(parked) == "PARKED  step 50/200 (25%)  loss 2.5000  generation 3  no nodes"


def test_a_job_that_is_over_shows_no_speed() -> None:
    over = dataclasses.replace(RUNNING, state="SUCCEEDED", step=200, reason="all steps done; weights 12ab")
    assert progress_line(over) == "SUCCEEDED  step 200/200 (100%)  loss 2.5000  generation 3"


def test_an_event_tells_what_why_and_who() -> None:
    event = EventRecord(
        id=1, at=0.0, job="gpt-1", node="n1", generation=2, what="node-lost", who="n2", why="it is silent"
    )
    assert event_line(event)[8:] == "  g2 n1  node-lost: it is silent  (by n2)"
    assert "gpt-1 g2 n1" in event_line(event, with_job=True)


def test_what_others_say_does_not_steer_the_terminal() -> None:
    assert plain("a\x1b[2Jb\r\x9b\u202ec") == "a\\x1b[2Jb\\r\\x9b\\u202ec"
    assert plain("naïve 模型 3 µs") == "naïve 模型 3 µs"
    event = EventRecord(
        id=1,
        at=0.0,
        job="",
        node="",
        generation=0,
        what="refused",
        who="n\x1b]0;x\x07",
        why="one\n12:00:00  fake",
    )
    line = event_line(event)
    assert line.isprintable()
    assert "refused: one 12:00:00  fake" in line
    assert progress_line(dataclasses.replace(RUNNING, state="PARKED", reason="\x1b[31mred")).isprintable()
    assert table(("NODE", "REASON"), [("n1", "\x1b[31mred")]).lines(80)[1] == "n1    \\x1b[31mred"


def test_who_is_soon_to_leave_is_told_where_there_is_room() -> None:
    leaving = dataclasses.replace(RUNNING, reason="resumed; soon to leave: b")
    assert full_reason(leaving) == leaving.reason
    assert "soon to leave" not in progress_line(leaving)
    assert full_reason(dataclasses.replace(leaving, state="SUCCEEDED")) == ""


@pytest.mark.parametrize(
    ("segments", "step", "text"),
    [((0, 1, 2, 7), 120, "0-2,7@5/120"), ((3,), -1, "3@5/-")],
)
def test_copies_are_segments_at_a_generation_and_step(
    segments: tuple[int, ...], step: int, text: str
) -> None:
    assert held_text(Copies(job="j", generation=5, segments=segments, step=step)) == text


@pytest.mark.parametrize(
    ("recoverable", "text"),
    [
        (50, "50 of 200, a checkpoint holds 40, 30 s old, no loss of one node costs any"),
        (48, "50 of 200, a checkpoint holds 40, 30 s old, 2 steps would be lost with a node"),
    ],
)
def test_a_status_says_how_old_the_checkpoint_is_and_what_a_loss_costs(recoverable: int, text: str) -> None:
    job = dataclasses.replace(RUNNING, recoverable_step=recoverable, durable_at=70.0)
    assert steps_text(job, 100.0) == text
