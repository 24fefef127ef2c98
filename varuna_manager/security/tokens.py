"""The tickets and tokens of one manager: all of them in memory, every change on disk before it counts."""

import asyncio
from collections.abc import Callable
from contextlib import suppress
from dataclasses import asdict, replace

import sqlalchemy as sa

from varuna_manager.persistence import Database
from varuna_manager.security.ledger import Token, TokenKind, TokenState, admitted_user, hashed, spent
from varuna_runtime.spec.errors import NotFound

_KEPT_S = 7 * 86400.0  # ones that are over are shown for so long
_LOOK_S = 1.0  # within this an expired token ends its open streams

_tables = sa.MetaData()
_tokens = sa.Table(
    "tokens",
    _tables,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("kind", sa.Text, nullable=False),
    sa.Column("name", sa.Text, nullable=False),
    sa.Column("secret_sha256", sa.Text, nullable=False),
    sa.Column("created_at_s", sa.Float, nullable=False),
    sa.Column("expires_at_s", sa.Float, nullable=False),
    sa.Column("created_by", sa.Text, nullable=False),
    sa.Column("used_at_s", sa.Float, nullable=True),
    sa.Column("used_key", sa.Text, nullable=False),
    sa.Column("revoked_at_s", sa.Float, nullable=True),
)
_barred = sa.Table(
    "barred",
    _tables,
    sa.Column("node", sa.Text, primary_key=True),
    sa.Column("until_s", sa.Float, nullable=False),
)


class Tokens:
    """Used from one event loop; only there do they change. `now_s` tells Unix time."""

    def __init__(self, database: Database, now_s: Callable[[], float]) -> None:
        self._database = database
        self._now_s = now_s
        self._changing = asyncio.Lock()
        self._changed = asyncio.Event()
        database.add_tables(_tables)
        with database.reading() as connection:
            rows = connection.execute(sa.select(_tokens)).mappings()
            self._barred: dict[str, float] = {
                row.node: row.until_s for row in connection.execute(sa.select(_barred))
            }
            found = [Token(**{**row, "kind": TokenKind(row["kind"])}) for row in rows]
        self._tokens = {token.id: token for token in found}

    def all(self) -> tuple[Token, ...]:
        """Return every known one, the oldest first."""
        return tuple(sorted(self._tokens.values(), key=lambda token: (token.created_at_s, token.id)))

    def state(self, token: Token) -> TokenState:
        """Return the state of one now."""
        return token.state(self._now_s())

    async def create(
        self, kind: TokenKind, *, id: str, secret: str, name: str, ttl_s: float, created_by: str
    ) -> Token:
        """Keep the hash of a new one, and forget those that were over long ago."""
        now_s = self._now_s()
        token = Token(
            id=id,
            kind=kind,
            name=name,
            secret_sha256=hashed(secret),
            created_at_s=now_s,
            expires_at_s=now_s + ttl_s,
            created_by=created_by,
        )
        async with self._changing:
            await self._keep(token)
            await self._forget([t.id for t in self._tokens.values() if t.expires_at_s + _KEPT_S < now_s])
        return token

    def admitted_user(self, id: str, secret: str) -> Token:
        """Return the valid user token of that id and secret; AccessRefused says why there is none."""
        return admitted_user(self._tokens.get(id), secret, self._now_s())

    async def spend(self, id: str, secret: str, *, node: str, key_sha256: str) -> Token:
        """Use a ticket up for this key; AccessRefused says why it is not good for it."""
        async with self._changing:
            found = self._tokens.get(id)
            used = spent(found, secret, node=node, key_sha256=key_sha256, now_s=self._now_s())
            if used != found:
                await self._keep(used)
        return used

    async def revoke(self, id: str) -> Token:
        """Make one useless from now on, also for streams that are open; NotFound if there is none."""
        async with self._changing:
            found = self._tokens.get(id)
            if found is None:
                raise NotFound(f"no token or ticket {id!r}; `varuna token ls` shows them")
            if found.revoked_at_s is None:
                found = replace(found, revoked_at_s=self._now_s())
                await self._keep(found)
        return found

    async def bar(self, node: str, now_s: float) -> None:
        """Revoke the tickets of a node, and the certificates that it got until now, for good."""
        async with self._changing:
            for token in self.all():
                if (token.kind, token.name) == (TokenKind.JOIN, node) and token.revoked_at_s is None:
                    await self._keep(replace(token, revoked_at_s=self._now_s()))
            await asyncio.to_thread(self._write_barred, node, now_s)
            self._barred[node] = now_s

    def is_barred(self, node: str, issued_at_s: float) -> bool:
        """Return whether a certificate of that node and age counts no more."""
        return issued_at_s <= self._barred.get(node, float("-inf"))

    async def forget(self, id: str) -> None:
        """Remove one for good; nothing happens if there is none."""
        async with self._changing:
            await self._forget([id])

    async def until_over(self, id: str) -> TokenState:
        """Wait until a token is not valid any more and return what it is."""
        while True:
            found = self._tokens.get(id)
            state = TokenState.REVOKED if found is None else self.state(found)
            if state is not TokenState.VALID:
                return state
            with suppress(TimeoutError):
                async with asyncio.timeout(_LOOK_S):
                    await self._changed.wait()

    async def _keep(self, token: Token) -> None:
        await asyncio.to_thread(self._write, token)
        self._tokens[token.id] = token
        self._tell()

    async def _forget(self, ids: list[str]) -> None:
        if ids:
            await asyncio.to_thread(self._delete, ids)
        for id in ids:
            self._tokens.pop(id, None)
        self._tell()

    def _tell(self) -> None:
        self._changed.set()
        self._changed = asyncio.Event()

    def _write(self, token: Token) -> None:
        row = {**asdict(token), "kind": token.kind.value}
        with self._database.writing() as connection:
            connection.execute(sa.delete(_tokens).where(_tokens.c.id == token.id))
            connection.execute(sa.insert(_tokens).values(row))

    def _write_barred(self, node: str, until_s: float) -> None:
        with self._database.writing() as connection:
            connection.execute(sa.delete(_barred).where(_barred.c.node == node))
            connection.execute(sa.insert(_barred).values(node=node, until_s=until_s))

    def _delete(self, ids: list[str]) -> None:
        with self._database.writing() as connection:
            connection.execute(sa.delete(_tokens).where(_tokens.c.id.in_(ids)))
