"""A snapshot saves time and changes nothing."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.fake_agent import profile_of
from tests.support.manager_process import model, submission
from varuna_manager import snapshots
from varuna_manager.core import events
from varuna_manager.core.config import CoreConfig
from varuna_manager.core.step import replay
from varuna_manager.persistence import Database
from varuna_manager.rows import Batch
from varuna_runtime.spec.generation import Cause, Endpoint
from varuna_runtime.spec.layout import BatchShape, Layout, Plan, ScheduleKind, Slot, Stage

PLAN = Plan(
    layout=Layout(stages=1, replicas=1),
    stages=(Stage(first=0, last=2, recompute=False),),
    schedule=ScheduleKind.GPIPE,
    batch=BatchShape(batch_size=8, micro_batch_size=4, virtual_replicas=1),
    placement=(Slot(node="n", index=0),),
    predicted_step_s=0.1,
)
FIRST = Path(__file__).parents[2] / "data/snapshots/first.json"
ENDPOINT = Endpoint(rank=0, host="h", port=1)
HEAD = {"job": "j", "generation": 1, "rank": 0}
HISTORY: tuple[events.Durable, ...] = (
    events.ManagerStarted(at_s=1.0, epoch=1, config=CoreConfig(lease_s=4.0)),
    events.NodeJoined(
        at_s=2.0,
        node="n",
        incarnation="i",
        slots=1,
        device_kind="cpu:test",
        memory_bytes=2**30,
        host="h",
        notices="file",
        pid=1,
        running=(),
    ),
    events.JobSubmitted(
        at_s=3.0, job="j", spec=submission("b").spec, model=model(), bundle="b", user="u", request_id="r"
    ),
    events.ProfileReady(at_s=4.0, job="j", profile=profile_of(model())),
    events.PlanMade(at_s=5.0, job="j", pool_version=1, outcome=PLAN),
    events.RankPrepared(at_s=6.0, **HEAD, plan_hash=PLAN.hash(), endpoint=ENDPOINT, resume_step=0),
    events.RankReady(at_s=7.0, **HEAD),
    events.RankActive(at_s=7.0, **HEAD, step=0),
    events.StepDurable(at_s=8.0, job="j", generation=1, step=2),
    events.RankFailed(at_s=9.0, **HEAD, cause=Cause.WORKER_CRASH, message="killed", detail=""),
    events.CancelRequested(at_s=10.0, job="j", user="u"),
)


@pytest.fixture
def database(tmp_path: Path) -> Iterator[Database]:
    opened = Database(tmp_path / "journal.sqlite")
    opened.commit(Batch(journal=HISTORY))
    yield opened
    opened.close()


def test_the_history_reaches_the_phases_it_should() -> None:
    phases = [replay(HISTORY[:n], CoreConfig()).jobs["j"].phase for n in range(3, len(HISTORY) + 1)]
    assert {"PROFILING", "PLANNING", "STARTING", "RUNNING", "CANCELLING"} <= set(phases)


@pytest.mark.parametrize("after", range(len(HISTORY) + 1))
def test_recovery_from_a_snapshot_at_any_place_equals_a_full_replay(database: Database, after: int) -> None:
    state = replay(HISTORY[:after], CoreConfig())
    database.keep_snapshot(snapshots.taken(state, after))
    assert snapshots.recovered(database) == replay(HISTORY, CoreConfig())


def test_what_the_snapshot_holds_is_not_replayed(database: Database) -> None:
    state = replace(replay(HISTORY, CoreConfig()), epoch=99)
    database.keep_snapshot(snapshots.taken(state, len(HISTORY)))
    assert snapshots.recovered(database).epoch == 99


def test_a_snapshot_that_cannot_be_read_is_ignored(database: Database) -> None:
    good = snapshots.taken(replay((), CoreConfig()), len(HISTORY))
    database.keep_snapshot(replace(good, body=b"{"))
    assert snapshots.recovered(database) == replay(HISTORY, CoreConfig())


def test_what_another_version_decided_is_not_judged_anew(database: Database) -> None:
    """FIRST is the state in which the first version left two jobs, one over, one draining a node."""
    row = snapshots.taken(replay((), CoreConfig()), len(HISTORY))
    database.keep_snapshot(replace(row, format="the first", body=FIRST.read_bytes()))
    state = snapshots.recovered(database)
    assert {job.job: (job.phase, job.generation) for job in state.jobs.values()} == {
        "j": ("SUCCEEDED", 2),
        "k": ("DRAINING", 2),
    }
    assert state.nodes["b"].notice_deadline_s is not None


def test_events_that_another_version_journaled_are_told(
    database: Database, capsys: pytest.CaptureFixture[str]
) -> None:
    row = snapshots.taken(replay(HISTORY[:9], CoreConfig()), 9)
    database.keep_snapshot(replace(row, format="older"))
    snapshots.recovered(database)
    assert "another version journaled events" in capsys.readouterr().out


def test_only_the_newest_snapshot_is_kept(database: Database) -> None:
    state = replay(HISTORY, CoreConfig())
    database.keep_snapshot(snapshots.taken(state, 3))
    database.keep_snapshot(snapshots.taken(state, 5))
    newest = database.snapshot()
    assert newest is not None
    assert newest.journal_id == 5
