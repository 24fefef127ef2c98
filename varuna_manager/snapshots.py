"""Snapshots of the state, so that a restart replays only what came after; the journal stays the truth.

A snapshot of another version counts if its fields still fit, so records of the state only grow, by fields
with defaults: a replay would judge by today's rules what was acted on by others, and wake jobs that are over.
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
    if row is None:
        return State(config=CoreConfig()), 0
    since = database.last_id() - row.journal_id
    if row.format != _format() and since:
        _log.warning(
            "another version journaled events that are replayed by the rules of this one", count=since
        )
    try:
        return canonical.loads(State, row.body), row.journal_id
    except InvalidInput as err:
        _log.warning("snapshot unusable, replaying everything", why=str(err))
        return State(config=CoreConfig()), 0


def _format() -> str:
    """Name the shape of the state: a field more or less makes another format."""
    return canonical.digest((version("varuna"), TypeAdapter(State).json_schema()))
