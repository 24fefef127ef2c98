"""The one place where state changes: events in, journal, then actions out."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace

import structlog

from varuna_manager.core.actions import Announce, AnyAction, RaiseDurable
from varuna_manager.core.events import AnyEvent, Durable
from varuna_manager.core.state import State
from varuna_manager.rows import Batch, EventRow

_log = structlog.get_logger()
_MAX_BATCH = 256

Step = Callable[[State, AnyEvent], tuple[State, tuple[AnyAction, ...]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Posted:
    event: AnyEvent
    rows: Batch
    done: Callable[[], None]


@dataclass(slots=True, kw_only=True)
class _Outcome:
    """What a batch of events comes to: nothing of it is visible before it is on disk."""

    state: State
    rows: Batch
    actions: list[AnyAction]


class Consumer:
    """Applies events one by one in order of arrival; several that wait share a commit.

    `step` is pure, so a batch is worked out first and published after its commit: an action never
    leaves before the event that caused it is journaled, and its event lines are in the same transaction.
    """

    def __init__(
        self,
        state: State,
        *,
        step: Step,
        commit: Callable[[Batch], None],
        dispatch: Callable[[AnyAction], None],
        journal_id: int = 0,
    ) -> None:
        self._state = state
        self._step = step
        self._commit = commit
        self._dispatch = dispatch
        self._queue: asyncio.Queue[_Posted] = asyncio.Queue()
        self._is_closed = False
        self._journal_id = journal_id

    @property
    def state(self) -> State:
        """The state as journaled."""
        return self._state

    @property
    def journal_id(self) -> int:
        """Id of the newest journaled event that is in `state`."""
        return self._journal_id

    @property
    def backlog(self) -> int:
        """How many events wait."""
        return self._queue.qsize()

    def offer(
        self, event: AnyEvent, *, rows: Batch | None = None, done: Callable[[], None] = lambda: None
    ) -> None:
        """Queue an event; `rows` go into its commit, `done` is called after it."""
        if not self._is_closed:
            self._queue.put_nowait(_Posted(event=event, rows=rows or Batch(), done=done))

    async def post(self, event: AnyEvent, *, rows: Batch | None = None) -> None:
        """Queue an event and wait until it is journaled and applied."""
        done = asyncio.Event()
        self.offer(event, rows=rows, done=done.set)
        await done.wait()

    async def run(self) -> None:
        """Work until cancelled; a failing commit ends the manager, since nothing may be promised any more."""
        while True:
            posted = [await self._queue.get()]
            while len(posted) < _MAX_BATCH and not self._queue.empty():
                posted.append(self._queue.get_nowait())
            await self.apply(posted)

    def close(self) -> None:
        """Take no more events: the manager is stopping and what ends now is its own doing."""
        self._is_closed = True

    async def apply(self, posted: Sequence[_Posted]) -> None:
        """Work out, commit and publish a batch."""
        outcome = self._outcome(posted)
        if not outcome.rows.is_empty:
            await asyncio.to_thread(self._commit, outcome.rows)
        self._state = outcome.state
        self._journal_id += len(outcome.rows.journal)
        for each in posted:
            each.done()
        for line in outcome.rows.events:
            _log.info(
                line.what,
                why=line.why,
                who=line.who,
                job=line.job,
                node=line.node,
                generation=line.generation,
            )
        for action in outcome.actions:
            self._dispatch(action)

    def _outcome(self, posted: Iterable[_Posted]) -> _Outcome:
        outcome = _Outcome(state=self._state, rows=Batch(), actions=[])
        for each in posted:
            outcome.rows = _joined(outcome.rows, each.rows)
            self._work_out(outcome, each.event)
        return outcome

    def _work_out(self, outcome: _Outcome, event: AnyEvent) -> None:
        try:
            state, actions = self._step(outcome.state, event)
        except Exception as err:  # a bug must cost one event, not the pool
            _log.exception("event refused", kind=type(event).__name__, error=str(err))
            return
        outcome.state = state
        if isinstance(event, Durable):
            outcome.rows = replace(outcome.rows, journal=(*outcome.rows.journal, event))
        for action in actions:
            if isinstance(action, Announce):
                outcome.rows = replace(outcome.rows, events=(*outcome.rows.events, _line(action, event.at_s)))
            elif isinstance(action, RaiseDurable):
                self._work_out(outcome, action.event)
            else:
                outcome.actions.append(action)


def _line(action: Announce, at_s: float) -> EventRow:
    return EventRow(
        at_s=at_s,
        job=action.job,
        node=action.node,
        generation=action.generation,
        what=str(action.what),
        who=action.who,
        why=action.why,
    )


def _joined(left: Batch, right: Batch) -> Batch:
    return Batch(
        journal=left.journal + right.journal,
        events=left.events + right.events,
        steps=left.steps + right.steps,
        metrics=left.metrics + right.metrics,
        plans=left.plans + right.plans,
        profiles=left.profiles + right.profiles,
    )
