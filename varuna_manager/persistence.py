"""The manager's database: the journal, and what users look up. It never decides anything.

One connection writes; a commit returns once SQLite has synced it (WAL, synchronous=FULL).
"""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict
from pathlib import Path
from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.sqlite import insert

from varuna_manager.core import journal as codec
from varuna_manager.core.events import Durable
from varuna_manager.rows import (
    Batch,
    EventRow,
    MetricRow,
    PlanRow,
    SnapshotRow,
    StepRow,
    StepTotals,
    StoredEvent,
)
from varuna_runtime.spec.errors import Conflict

SCHEMA_VERSION = 1
_PAGE = 1000

_tables = sa.MetaData()
_meta = sa.Table("meta", _tables, sa.Column("key", sa.Text, primary_key=True), sa.Column("value", sa.Integer))
_journal = sa.Table(
    "journal",
    _tables,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at_s", sa.Float, nullable=False),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)
_events = sa.Table(
    "events",
    _tables,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("at_s", sa.Float, nullable=False),
    sa.Column("job", sa.Text, nullable=False, index=True),
    sa.Column("node", sa.Text, nullable=False),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("what", sa.Text, nullable=False),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
)
_steps = sa.Table(
    "steps",
    _tables,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("step", sa.Integer, primary_key=True),
    sa.Column("generation", sa.Integer, primary_key=True),
    sa.Column("loss_hex", sa.Text, nullable=False),
    sa.Column("loss", sa.Float, nullable=True),
    sa.Column("samples", sa.Integer, nullable=False),
    sa.Column("step_s", sa.Float, nullable=False),
    sa.Column("at_s", sa.Float, nullable=False),
)
_metrics = sa.Table(
    "metrics",
    _tables,
    sa.Column("job", sa.Text, primary_key=True),
    sa.Column("step", sa.Integer, primary_key=True),
    sa.Column("is_evaluation", sa.Boolean, primary_key=True),
    sa.Column("generation", sa.Integer, nullable=False),
    sa.Column("at_s", sa.Float, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)
_plans = sa.Table(
    "plans",
    _tables,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("job", sa.Text, nullable=False, index=True),
    sa.Column("plan_hash", sa.Text, nullable=False),
    sa.Column("plan_json", sa.LargeBinary, nullable=False),
    sa.Column("reason", sa.Text, nullable=False),
    sa.Column("change", sa.Text, nullable=False),
    sa.Column("explanation_json", sa.LargeBinary, nullable=False),
)
_profiles = sa.Table(
    "profiles",
    _tables,
    sa.Column("workload", sa.Text, primary_key=True),
    sa.Column("device_kind", sa.Text, primary_key=True),
    sa.Column("profile_json", sa.LargeBinary, nullable=False),
)
_snapshots = sa.Table(
    "snapshots",
    _tables,
    sa.Column("journal_id", sa.Integer, primary_key=True),
    sa.Column("format", sa.Text, nullable=False),
    sa.Column("body", sa.LargeBinary, nullable=False),
)


class Database:
    """One SQLite file; calls block, writes come from one thread at a time."""

    def __init__(self, path: Path) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._reader = sa.create_engine(f"sqlite:///{path}")
        self._writer = sa.create_engine(f"sqlite:///{path}")
        sa.event.listen(self._writer, "connect", _configure)
        sa.event.listen(self._writer, "begin", _begin)
        _tables.create_all(self._writer)
        self._check_version(path)

    def next_epoch(self) -> int:
        """Return the epoch of this start: one more than any before it, already durable."""
        with self._writer.begin() as connection:
            epoch = 1 + (self._read_meta(connection, "epoch") or 0)
            self._write_meta(connection, "epoch", epoch)
        return epoch

    def commit(self, batch: Batch) -> None:
        """Write the batch in one transaction; it is on disk when this returns."""
        with self._writer.begin() as connection:
            for table, rows in _rows(batch):
                if rows:
                    connection.execute(insert(table).on_conflict_do_nothing(), rows)
            for profile in batch.profiles:
                connection.execute(upsert(_profiles, asdict(profile), ["workload", "device_kind"]))

    def replay(self, *, after: int = 0) -> Iterator[Durable]:
        """Yield every journaled event with an id above `after`, oldest first."""
        query = sa.select(_journal.c.body).where(_journal.c.id > after).order_by(_journal.c.id)
        with self._reader.connect() as connection:
            for (body,) in connection.execute(query.execution_options(yield_per=_PAGE)):
                yield codec.decode(body)

    def last_id(self) -> int:
        """Return the id of the newest journaled event; ids count up by one from 1."""
        with self._reader.connect() as connection:
            return connection.execute(sa.select(sa.func.max(_journal.c.id))).scalar() or 0

    def snapshot(self) -> SnapshotRow | None:
        """Return the newest snapshot."""
        query = sa.select(_snapshots).order_by(_snapshots.c.journal_id.desc()).limit(1)
        with self._reader.connect() as connection:
            row = connection.execute(query).mappings().first()
            return SnapshotRow(**row) if row else None

    def keep_snapshot(self, snapshot: SnapshotRow) -> None:
        """Keep this snapshot instead of the older ones."""
        with self._writer.begin() as connection:
            connection.execute(upsert(_snapshots, asdict(snapshot), ["journal_id"]))
            connection.execute(sa.delete(_snapshots).where(_snapshots.c.journal_id < snapshot.journal_id))

    def last_at_s(self) -> float:
        """Return the time of the newest journaled event, 0 for an empty journal."""
        with self._reader.connect() as connection:
            return connection.execute(sa.select(sa.func.max(_journal.c.at_s))).scalar() or 0.0

    def events(self, *, job: str, after: int) -> tuple[StoredEvent, ...]:
        """Return up to a page of event lines with an id above `after`; an empty job means all jobs."""
        query = sa.select(_events).where(_events.c.id > after).order_by(_events.c.id).limit(_PAGE)
        if job:
            query = query.where(_events.c.job == job)
        with self._reader.connect() as connection:
            return tuple(_stored_event(row) for row in connection.execute(query).mappings())

    def steps(self, job: str) -> tuple[StepRow, ...]:
        """Return every recorded step of a job in (step, generation) order."""
        query = sa.select(_steps).where(_steps.c.job == job).order_by(_steps.c.step, _steps.c.generation)
        with self._reader.connect() as connection:
            return tuple(_step(row) for row in connection.execute(query).mappings())

    def newest_steps(self, job: str, *, generation: int, limit: int) -> tuple[StepRow, ...]:
        """Return the last steps of a generation, ascending."""
        query = sa.select(_steps).where(_steps.c.job == job, _steps.c.generation == generation)
        query = query.order_by(_steps.c.step.desc()).limit(limit)
        with self._reader.connect() as connection:
            return tuple(_step(row) for row in connection.execute(query).mappings())[::-1]

    def metrics(self, job: str, *, after: MetricRow | None) -> tuple[MetricRow, ...]:
        """Return up to a page of a job's steps and evaluations beyond `after`, ascending."""
        step, is_evaluation = _metrics.c.step, _metrics.c.is_evaluation
        query = sa.select(_metrics).where(_metrics.c.job == job).order_by(step, is_evaluation).limit(_PAGE)
        if after is not None:
            query = query.where(sa.tuple_(step, is_evaluation) > (after.step, after.is_evaluation))
        with self._reader.connect() as connection:
            return tuple(MetricRow(**row) for row in connection.execute(query).mappings())

    def step_totals(self, jobs: Sequence[str]) -> dict[str, StepTotals]:
        """Return the totals of those of the jobs that have recorded steps."""
        newest_first = (_steps.c.generation.desc(), _steps.c.step.desc())
        last_loss = sa.func.first_value(_steps.c.loss).over(partition_by=_steps.c.job, order_by=newest_first)
        rows = sa.select(_steps.c.job, _steps.c.step, last_loss.label("last_loss"))
        each = rows.where(_steps.c.job.in_(jobs)).subquery()
        replayed = sa.func.count() - sa.func.count(sa.distinct(each.c.step))
        query = sa.select(each.c.job, replayed, sa.func.max(each.c.last_loss)).group_by(each.c.job)
        with self._reader.connect() as connection:
            return {
                job: StepTotals(replayed_steps=count, last_loss=_loss(loss))
                for job, count, loss in connection.execute(query)
            }

    def plan(self, job: str, *, plan_hash: str = "") -> PlanRow | None:
        """Return the newest answer of the planner for a job, or the newest with that hash."""
        query = sa.select(*(c for c in _plans.c if c.name != "id")).where(_plans.c.job == job)
        if plan_hash:
            query = query.where(_plans.c.plan_hash == plan_hash)
        with self._reader.connect() as connection:
            row = connection.execute(query.order_by(_plans.c.id.desc()).limit(1)).mappings().first()
            return PlanRow(**row) if row else None

    def profile(self, workload: str, *, device_kind: str = "") -> bytes | None:
        """Return the profile of a model for a device kind, or for any kind when none is given."""
        query = sa.select(_profiles.c.profile_json).where(_profiles.c.workload == workload)
        if device_kind:
            query = query.where(_profiles.c.device_kind == device_kind)
        with self._reader.connect() as connection:
            return connection.execute(query.order_by(_profiles.c.device_kind).limit(1)).scalar()

    def add_tables(self, tables: sa.MetaData) -> None:
        """Make tables that another part of the manager owns, unless they are there."""
        tables.create_all(self._writer)

    def reading(self) -> AbstractContextManager[sa.Connection]:
        """Return a connection to read from."""
        return self._reader.connect()

    def writing(self) -> AbstractContextManager[sa.Connection]:
        """Return a transaction; it is on disk once left."""
        return self._writer.begin()

    def close(self) -> None:
        """Close every connection."""
        self._reader.dispose()
        self._writer.dispose()

    def _check_version(self, path: Path) -> None:
        with self._writer.begin() as connection:
            found = self._read_meta(connection, "schema")
            if found is None:
                self._write_meta(connection, "schema", SCHEMA_VERSION)
            elif found != SCHEMA_VERSION:
                raise Conflict(
                    f"{path} has schema {found}, this version reads {SCHEMA_VERSION}; "
                    "use the version that wrote it, or a new state home"
                )

    def _read_meta(self, connection: sa.Connection, key: str) -> int | None:
        return connection.execute(sa.select(_meta.c.value).where(_meta.c.key == key)).scalar()

    def _write_meta(self, connection: sa.Connection, key: str, value: int) -> None:
        connection.execute(upsert(_meta, {"key": key, "value": value}, ["key"]))


def _configure(connection: Any, _record: object) -> None:
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=FULL")
    connection.execute("PRAGMA busy_timeout=5000")
    connection.isolation_level = None  # the driver opens no transaction of its own; `_begin` does


def _begin(connection: sa.Connection) -> None:
    connection.exec_driver_sql("BEGIN IMMEDIATE")


def upsert(table: sa.Table, row: dict[str, Any], keys: Sequence[str]) -> sa.Insert:
    """Return a statement that puts `row` in the place of the one with the same `keys`."""
    changed = {name: value for name, value in row.items() if name not in keys}
    return insert(table).values(row).on_conflict_do_update(index_elements=keys, set_=changed)


def _rows(batch: Batch) -> Iterator[tuple[sa.Table, list[dict[str, Any]]]]:
    yield (
        _journal,
        [{"at_s": e.at_s, "kind": type(e).__name__, "body": codec.encode(e)} for e in batch.journal],
    )
    yield _events, [asdict(row) for row in batch.events]
    yield _steps, [asdict(row) for row in batch.steps]
    yield _metrics, [asdict(row) for row in batch.metrics]
    yield _plans, [asdict(row) for row in batch.plans]


def _stored_event(row: sa.RowMapping) -> StoredEvent:
    fields = dict(row)
    return StoredEvent(id=fields.pop("id"), line=EventRow(**fields))


def _step(row: sa.RowMapping) -> StepRow:
    return StepRow(**{**row, "loss": _loss(row["loss"])})


def _loss(found: float | None) -> float:
    return float("nan") if found is None else found  # SQLite keeps NaN as NULL
