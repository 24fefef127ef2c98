"""What was committed is there after any restart, all of a batch or nothing."""

import math
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa

from varuna_manager.core.events import CancelRequested
from varuna_manager.notes import DatabaseNotes
from varuna_manager.persistence import Database
from varuna_manager.planner.request import PlanOutcome
from varuna_manager.rows import Batch, EventRow, MetricRow, PlanRow, ProfileRow, StepRow, plan_row
from varuna_runtime.spec.errors import Conflict
from varuna_runtime.spec.layout import Infeasible

STEP = StepRow(job="j", step=0, generation=1, loss_hex="0x1p+0", loss=1.0, samples=8, step_s=0.1, at_s=5.0)
LINE = EventRow(at_s=1.0, job="j", node="", generation=0, what="w", who="u", why="y")
PLAN = PlanRow(job="j", plan_hash="h", plan_json=b"{}", reason="", change="", explanation_json=b"")


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "journal.sqlite")
    yield opened
    opened.close()


def cancel(number: int) -> CancelRequested:
    return CancelRequested(at_s=float(number), job=f"j{number}", user="u")


def test_journaled_events_come_back_in_order_from_a_new_process(database: Database, tmp_path: Path) -> None:
    database.commit(Batch(journal=(cancel(2), cancel(1))))
    database.commit(Batch(journal=(cancel(3),)))
    again = Database(tmp_path / "journal.sqlite")
    assert list(again.replay()) == [cancel(2), cancel(1), cancel(3)]
    assert again.last_at_s() == 3.0
    again.close()


def test_an_empty_journal_has_no_time(database: Database) -> None:
    assert (list(database.replay()), database.last_at_s()) == ([], 0.0)


def test_a_batch_is_written_whole_or_not_at_all(database: Database) -> None:
    broken = replace(PLAN, plan_json=None)  # type: ignore[arg-type]
    with pytest.raises(sa.exc.IntegrityError):
        database.commit(Batch(journal=(cancel(1),), events=(LINE,), plans=(PLAN, broken)))
    assert list(database.replay()) == []
    assert database.events(job="", after=0) == ()


def test_each_start_has_a_higher_epoch(database: Database, tmp_path: Path) -> None:
    again = Database(tmp_path / "journal.sqlite")
    assert [database.next_epoch(), again.next_epoch(), database.next_epoch()] == [1, 2, 3]
    again.close()


def test_a_database_of_another_schema_is_refused(database: Database, tmp_path: Path) -> None:
    with sqlite3.connect(tmp_path / "journal.sqlite") as connection:
        connection.execute("UPDATE meta SET value = 99 WHERE key = 'schema'")
    connection.close()
    with pytest.raises(Conflict, match="schema 99"):
        Database(tmp_path / "journal.sqlite")


def test_the_database_survives_power_loss_by_its_settings(database: Database) -> None:
    with database._writer.connect() as connection:
        assert connection.exec_driver_sql("PRAGMA journal_mode").scalar() == "wal"
        assert connection.exec_driver_sql("PRAGMA synchronous").scalar() == 2


def test_replayed_steps_are_kept_and_counted_repeats_are_not(database: Database) -> None:
    database.commit(Batch(steps=(STEP, replace(STEP, step=1), STEP)))
    database.commit(Batch(steps=(STEP, replace(STEP, step=1, generation=2, loss=0.25))))
    assert [(s.step, s.generation) for s in database.steps("j")] == [(0, 1), (1, 1), (1, 2)]
    totals = database.step_totals(["j", "other"])
    assert {job: (t.replayed_steps, t.last_loss) for job, t in totals.items()} == {"j": (1, 0.25)}


def test_the_newest_steps_of_a_generation_are_ascending(database: Database) -> None:
    database.commit(Batch(steps=tuple(replace(STEP, step=i) for i in range(5))))
    assert [s.step for s in database.newest_steps("j", generation=1, limit=2)] == [3, 4]


def test_a_loss_that_is_no_number_comes_back_as_one(database: Database) -> None:
    database.commit(Batch(steps=(replace(STEP, loss=math.nan, loss_hex="nan"),)))
    assert math.isnan(database.steps("j")[0].loss)
    assert math.isnan(database.step_totals(["j"])["j"].last_loss)


def test_event_lines_are_paged_by_growing_ids_and_filtered_by_job(database: Database) -> None:
    database.commit(Batch(events=(LINE, replace(LINE, job="k"), LINE)))
    first, second = database.events(job="j", after=0)
    assert database.events(job="j", after=first.id) == (second,)
    assert len(database.events(job="", after=0)) == 3


def test_the_plan_in_use_is_found_by_hash_else_the_newest_answer(database: Database) -> None:
    newer = plan_row("j", PlanOutcome(outcome=Infeasible(reason="r", change="c"), explanation=None))
    database.commit(Batch(plans=(PLAN, newer)))
    assert database.plan("j") == newer
    assert database.plan("j", plan_hash="h") == PLAN
    assert database.plan("k") is None


def test_a_profile_measured_again_replaces_the_older(database: Database) -> None:
    row = ProfileRow(workload="m", device_kind="d", profile_json=b"1")
    database.commit(Batch(profiles=(row,)))
    database.commit(Batch(profiles=(replace(row, profile_json=b"2"),)))
    assert database.profile("m", device_kind="d") == b"2"
    assert database.profile("m") == b"2"
    assert database.profile("m", device_kind="e") is None


def test_notes_are_kept_by_owner_and_outlive_the_manager(tmp_path: Path) -> None:
    database = Database(tmp_path / "j.sqlite")
    notes = DatabaseNotes(database, "pool spot")
    assert notes.get("write") is None
    notes.put("write", "token 1")
    notes.put("write", "token 2")
    assert DatabaseNotes(database, "pool other").get("write") is None
    database.close()
    again = Database(tmp_path / "j.sqlite")
    assert DatabaseNotes(again, "pool spot").get("write") == "token 2"
    DatabaseNotes(again, "pool spot").remove("write")
    DatabaseNotes(again, "pool spot").remove("write")
    assert DatabaseNotes(again, "pool spot").get("write") is None
    again.close()


def metric(step: int, *, is_evaluation: bool = False, generation: int = 1, body: bytes = b"") -> MetricRow:
    return MetricRow(
        job="j", step=step, is_evaluation=is_evaluation, generation=generation, at_s=1.0, body=body
    )


def test_metrics_come_in_order_each_once_whatever_was_replayed(database: Database) -> None:
    evaluation = metric(2, is_evaluation=True)
    database.commit(Batch(metrics=(metric(1), metric(2), evaluation, metric(3))))
    database.commit(Batch(metrics=(metric(2, generation=2, body=b"again"), metric(4, generation=2))))
    found = [metric(1), metric(2), evaluation, metric(3), metric(4, generation=2)]
    assert list(database.metrics("j", after=None)) == found
    for place, row in enumerate(found, start=1):
        assert list(database.metrics("j", after=row)) == found[place:]
    assert database.metrics("other", after=None) == ()
