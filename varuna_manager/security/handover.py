"""Hands join tickets over to machines of a cloud: one place for each node, read by that machine alone.

A ticket is on record before it is put there, and off the record after it was taken away: so a manager
that died in between finds what it has to clean up.
"""

import asyncio
from collections.abc import Coroutine, Sequence, Set
from dataclasses import dataclass
from typing import Protocol

import structlog

from varuna_manager.cloud.provider import InstancePhase, PoolReading
from varuna_manager.security.desk import Desk
from varuna_manager.security.ledger import Token, TokenKind, TokenState

_log = structlog.get_logger()
_CALL_S = 30.0
_AT_ONCE = 8


class HandOverFailed(Exception):
    """The place did not do it; the next reading tries again."""


class TicketPlace(Protocol):
    """Where the machines of a pool find their tickets. Calls block and may raise HandOverFailed."""

    def put(self, node: str, ticket: str) -> None:
        """Have this ticket there, in the place of an older one."""
        ...

    def remove(self, node: str) -> None:
        """Have no ticket of that node there; fine if there is none."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Todo:
    """What to do for the machines of one reading; nodes and records are sorted."""

    mint: tuple[str, ...]  # nodes that need a ticket
    drop: tuple[Token, ...]  # records of tickets that are of no use any more


def todo(
    reading: PoolReading, *, joined: Set[str], known: Sequence[Token], placed: Set[str], now_s: float
) -> Todo:
    """Return what to do; `known` are the pool's tickets on record, `placed` the ids known to be in place.

    A spent ticket stays until its node has joined or its time is over: the first reply may have been lost.
    One that may not be in place is dropped and made anew, since its text is kept nowhere.
    """
    alive = {i.node for i in reading.instances if i.phase in (InstancePhase.STARTING, InstancePhase.RUNNING)}
    waiting = alive - joined
    useful: dict[str, Token] = {}
    for token in known:
        is_open = token.revoked_at_s is None and now_s < token.expires_at_s
        is_there = token.id in placed or token.state(now_s) is TokenState.USED
        if is_open and is_there and token.name in waiting:
            useful.setdefault(token.name, token)
    drop = tuple(sorted((t for t in known if useful.get(t.name) is not t), key=lambda t: t.id))
    return Todo(mint=tuple(sorted(waiting - useful.keys())), drop=drop)


class HandOver:
    """The tickets of one pool; `on_reading` is called after each complete reading, never twice at once."""

    def __init__(self, pool: str, place: TicketPlace, desk: Desk) -> None:
        self._pool = pool
        self._place = place
        self._desk = desk
        self._placed: set[str] = set()
        self._trouble = ""

    @property
    def maker(self) -> str:
        """Who made its tickets, by the record."""
        return f"pool {self._pool}"

    async def on_reading(self, reading: PoolReading, joined: Set[str], now_s: float) -> None:
        """Put tickets where machines wait for one and take the others away."""
        known = [
            t for t in self._desk.tokens.all() if t.kind is TokenKind.JOIN and t.created_by == self.maker
        ]
        plan = todo(reading, joined=joined, known=known, placed=self._placed, now_s=now_s)
        again = set(plan.mint)
        troubles = await self._each([self._drop(t, is_replaced=t.name in again) for t in plan.drop])
        troubles += await self._each([self._mint(node) for node in plan.mint])
        trouble = troubles[0] if troubles else ""
        if trouble and trouble != self._trouble:
            _log.warning("hand-over failed", pool=self._pool, why=trouble, times=len(troubles))
        self._trouble = trouble

    async def _each(self, steps: list[Coroutine[None, None, None]]) -> list[str]:
        """Do every step, a few at once, and return why some failed."""
        turn = asyncio.Semaphore(_AT_ONCE)

        async def one(step: Coroutine[None, None, None]) -> str:
            async with turn:
                try:
                    async with asyncio.timeout(_CALL_S):
                        await step
                except (HandOverFailed, TimeoutError) as err:
                    return str(err) or f"no answer in {_CALL_S:g} s"
            return ""

        return [why for why in await asyncio.gather(*map(one, steps)) if why]

    async def _mint(self, node: str) -> None:
        token, text = await self._desk.ticket(node, created_by=self.maker)
        await asyncio.to_thread(self._place.put, node, text)
        self._placed.add(token.id)

    async def _drop(self, token: Token, *, is_replaced: bool) -> None:
        """Take a ticket away; where a new one takes its place, making it useless is enough."""
        if not is_replaced:
            await asyncio.to_thread(self._place.remove, token.name)
        await self._desk.tokens.forget(token.id)
        self._placed.discard(token.id)
