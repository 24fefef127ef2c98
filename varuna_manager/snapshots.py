"""Snapshots of the state, so that a restart replays only what came after; the journal stays the truth.

A snapshot of another version is ignored: the whole journal is replayed instead.
"""

from importlib.metadata import version

import structlog
from pydantic import TypeAdapter

from varuna_manager.core.config import CoreConfig
from varuna_manager.core.state import State
from varuna_manager.core.step import step
from varuna_manager.persistence import Database
from varuna_manager.rows import SnapshotRow
from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import InvalidInput

_log = structlog.get_logger()


def recovered(database: Database) -> State:
    """Return the state after the whole journal; the thresholds are those the journal names."""
    state, after = _newest(database)
    for event in database.replay(after=after):
        state, _ = step(state, event)
    return state.durable()


def taken(state: State, journal_id: int) -> SnapshotRow:
    """Return the snapshot of the state after the journal entry `journal_id`."""
    return SnapshotRow(journal_id=journal_id, format=_format(), body=canonical.dumps(state.durable()))


def _newest(database: Database) -> tuple[State, int]:
    row = database.snapshot()
    if row is None or row.format != _format():
        return State(config=CoreConfig()), 0
    try:
        return canonical.loads(State, row.body), row.journal_id
    except InvalidInput as err:
        _log.warning("snapshot unusable, replaying everything", why=str(err))
        return State(config=CoreConfig()), 0


def _format() -> str:
    """Name the shape of the state: a field more or less makes another format."""
    return canonical.digest((version("varuna"), TypeAdapter(State).json_schema()))
