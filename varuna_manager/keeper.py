"""Keeps the pools at what the jobs need: reads every provider, decides with `sizing`, writes, reports."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, assert_never

import structlog

from varuna_manager.calls import Calls
from varuna_manager.clock import Clock
from varuna_manager.cloud.provider import PoolReading, Provider
from varuna_manager.consumer import Consumer
from varuna_manager.core.state import State
from varuna_manager.sizing.books import Books
from varuna_manager.sizing.decide import decide, outcome
from varuna_manager.sizing.decisions import Decision, Failed, GiveUp, Grow, LetGo, Post, Release, Write
from varuna_manager.sizing.demand import signature
from varuna_manager.sizing.settings import Rules, Settings

_log = structlog.get_logger()
_DYING_S = 0.1  # the sockets of a killed process close a little before it counts as dead
_LOOK_S = 0.2  # how often the demand is compared
_CALL_TIMEOUT_S = 60.0
_FIRST_LOOK_S = 5.0
_SOONEST = 0.25  # of the poll interval: a metered provider is not asked more often, whatever happens

OnReading = Callable[[str, PoolReading], Coroutine[Any, Any, None]]
"""(pool, its fresh reading); runs beside the next pass, never twice at once for a pool."""


class Keeper:
    """One loop a pool: a fresh reading, a decision over all pools, writes to this pool only."""

    def __init__(
        self,
        providers: Mapping[str, Provider],
        books: Books,
        consumer: Consumer,
        clock: Clock,
        *,
        on_reading: OnReading | None = None,
        call_timeout_s: float = _CALL_TIMEOUT_S,
    ) -> None:
        self._providers = providers
        self._books = books
        self._consumer = consumer
        self._clock = clock
        self._on_reading = on_reading
        self._calls: dict[str, Calls[Any]] = {
            name: Calls(f"pool {name}", within_s=call_timeout_s) for name in providers
        }
        self._kicks = {name: asyncio.Event() for name in providers}
        self._hooks: dict[str, asyncio.Task[None]] = {}

    async def run(self, broken: asyncio.Event) -> None:
        """Work until cancelled; `broken` is set when a node's stream ended."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._watch_streams(broken))
            tasks.create_task(self._watch_demand())
            for rules in self._books.settings.rules:
                tasks.create_task(self._keep(rules, tasks))

    async def look(self) -> None:
        """Report what is gone, before anyone is served; writes nothing and waits a few seconds at most."""
        settings = self._books.settings
        only_look = replace(settings, rules=tuple(replace(r, is_sized=False) for r in settings.rules))
        looks = [asyncio.create_task(self._look(rules, only_look)) for rules in settings.rules]
        _, late = await asyncio.wait(looks, timeout=_FIRST_LOOK_S)
        for look in late:
            look.cancel()
        await asyncio.gather(*looks, return_exceptions=True)

    async def _look(self, rules: Rules, settings: Settings) -> None:
        answer = await self._read(rules)
        await self._carry_out(rules, self._decide(rules, answer, settings), answer)

    async def _keep(self, rules: Rules, tasks: asyncio.TaskGroup) -> None:
        while True:
            try:
                await self._pass(rules, tasks)
            except Exception as err:  # a bug must cost one pass of one pool, not the manager
                _log.exception("pass failed", pool=rules.pool, error=str(err))
            await self._until_due(rules)

    async def _pass(self, rules: Rules, tasks: asyncio.TaskGroup) -> None:
        answer = await self._read(rules)
        await self._carry_out(rules, self._decide(rules, answer, self._books.settings), answer)
        if isinstance(answer, PoolReading):
            self._hand_on(rules, answer, tasks)

    async def _read(self, rules: Rules) -> PoolReading | Failed:
        provider = self._providers[rules.pool]
        return await self._calls[rules.pool].call(lambda: provider.read(self._clock.now_s()))

    def _decide(self, rules: Rules, answer: PoolReading | Failed, settings: Settings) -> tuple[Decision, ...]:
        before = self._books.memory.of(rules.pool).failed
        if isinstance(answer, Failed) and (before is None or before.trouble is not answer.trouble):
            _log.warning("provider unavailable", pool=rules.pool, trouble=answer.trouble, why=answer.message)
        memory, decisions = decide(
            self._books.memory, self._consumer.state, {rules.pool: answer}, settings, self._clock.now_s()
        )
        self._books.memory = memory
        return decisions

    async def _carry_out(
        self, rules: Rules, decisions: tuple[Decision, ...], answer: PoolReading | Failed
    ) -> None:
        for decision in decisions:
            if isinstance(decision, Post):
                await self._consumer.post(decision.event)
            else:
                assert isinstance(answer, PoolReading), "a write without a fresh reading"
                assert decision.pool == rules.pool, "a write to a pool that was not read in this pass"
                await self._write(decision, answer)

    async def _write(self, write: Write, seen: PoolReading) -> None:
        call = _call(self._providers[write.pool], write, seen, self._consumer.state)
        if call is None:
            return
        answer = await self._calls[write.pool].call(call)
        failure = answer if isinstance(answer, Failed) else None
        _log.info("pool written", write=str(write), failed=failure and failure.message)
        self._books.memory, posts = outcome(
            self._books.memory,
            self._consumer.state,
            write,
            failure,
            self._books.settings,
            self._clock.now_s(),
        )
        for post in posts:
            assert isinstance(post, Post), "an answer leads to no further write in the same pass"
            await self._consumer.post(post.event)

    def _hand_on(self, rules: Rules, reading: PoolReading, tasks: asyncio.TaskGroup) -> None:
        running = self._hooks.get(rules.pool)
        if self._on_reading is not None and (running is None or running.done()):
            self._hooks[rules.pool] = tasks.create_task(self._hook(self._on_reading, rules.pool, reading))

    async def _hook(self, on_reading: OnReading, pool: str, reading: PoolReading) -> None:
        try:
            await on_reading(pool, reading)
        except Exception as err:  # the next reading calls it again
            _log.exception("hand-over failed", pool=pool, error=str(err))

    async def _until_due(self, rules: Rules) -> None:
        """Wait for the next round; a kick shortens that, but not what the provider asked for."""
        kick, now_s = self._kicks[rules.pool], self._clock.now_s()
        quiet_s = self._books.memory.of(rules.pool).quiet_until_s - now_s
        soonest_s = max(quiet_s, 0.0 if rules.is_near else rules.poll_s * _SOONEST)
        if soonest_s > 0:
            await asyncio.sleep(soonest_s)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(max(0.0, rules.poll_s - max(soonest_s, 0.0))):
                await kick.wait()
        kick.clear()

    async def _watch_streams(self, broken: asyncio.Event) -> None:
        while True:
            await broken.wait()
            await asyncio.sleep(_DYING_S)
            broken.clear()
            self._kick()

    async def _watch_demand(self) -> None:
        known = signature(self._consumer.state)
        while True:
            await asyncio.sleep(_LOOK_S)
            if (found := signature(self._consumer.state)) != known:
                known = found
                self._kick()

    def _kick(self) -> None:
        for kick in self._kicks.values():
            kick.set()


def _call(provider: Provider, write: Write, seen: PoolReading, state: State) -> Callable[[], None] | None:
    """Return the provider call; None if the core meanwhile refused the end of every machine it names."""
    match write:
        case Grow(desired=desired):
            return partial(provider.grow, desired, seen)
        case GiveUp():
            return partial(provider.give_up, seen)
        case LetGo(node=node):
            return partial(provider.let_go, node, seen)
        case Release(nodes=nodes):
            agreed = [node for node in nodes if node in state.ending and not state.is_busy(node)]
            return partial(provider.release, agreed, seen) if agreed else None
        case _:
            assert_never(write)
