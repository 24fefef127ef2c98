"""Short texts that outlive the manager, such as what an adapter must know of a write under way."""

import sqlalchemy as sa

from varuna_manager.persistence import Database, upsert

_tables = sa.MetaData()
_notes = sa.Table(
    "notes",
    _tables,
    sa.Column("owner", sa.Text, primary_key=True),
    sa.Column("key", sa.Text, primary_key=True),
    sa.Column("text", sa.Text, nullable=False),
)


class DatabaseNotes:
    """Texts by key, apart from those of other owners; each call is a transaction of its own."""

    def __init__(self, database: Database, owner: str) -> None:
        database.add_tables(_tables)
        self._database = database
        self._owner = owner

    def get(self, key: str) -> str | None:
        """Return the text under `key`; None if there is none."""
        with self._database.writing() as connection:  # sees what was just put
            return connection.execute(sa.select(_notes.c.text).where(*self._at(key))).scalar()

    def put(self, key: str, text: str) -> None:
        """Keep `text` under `key`, in the place of what was there."""
        row = {"owner": self._owner, "key": key, "text": text}
        with self._database.writing() as connection:
            connection.execute(upsert(_notes, row, ["owner", "key"]))

    def remove(self, key: str) -> None:
        """Forget what is under `key`, if anything."""
        with self._database.writing() as connection:
            connection.execute(sa.delete(_notes).where(*self._at(key)))

    def _at(self, key: str) -> tuple[sa.ColumnElement[bool], ...]:
        return (_notes.c.owner == self._owner, _notes.c.key == key)
