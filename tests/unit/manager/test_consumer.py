"""Journal before dispatch, whatever happens."""

import asyncio
from dataclasses import dataclass, field

import pytest

from varuna_manager.consumer import Consumer
from varuna_manager.core.actions import Announce, AnyAction, ForgetJob, RaiseDurable
from varuna_manager.core.config import CoreConfig
from varuna_manager.core.events import AnyEvent, CancelRequested, DeadlinePassed, ProfileMissing, Ticked
from varuna_manager.core.state import State
from varuna_manager.rows import Batch, ProfileRow

FORGET = ForgetJob(node="n", incarnation="i", job="j")
EMPTY = State(config=CoreConfig())


def cancel(job: str, at_s: float = 1.0) -> CancelRequested:
    return CancelRequested(at_s=at_s, job=job, user="u")


@dataclass
class Shell:
    """Records what the consumer does to the outside, in order."""

    log: list[str] = field(default_factory=list)
    batches: list[Batch] = field(default_factory=list)
    fails: bool = False
    actions: dict[type, tuple[AnyAction, ...]] = field(default_factory=dict)

    def step(self, state: State, event: AnyEvent) -> tuple[State, tuple[AnyAction, ...]]:
        if isinstance(event, ProfileMissing):
            raise AssertionError("a bug")
        counted = State(config=state.config, num_submitted=state.num_submitted + 1)
        return counted, self.actions.get(type(event), ())

    def commit(self, batch: Batch) -> None:
        if self.fails:
            raise OSError("disk full")
        self.log.append("commit")
        self.batches.append(batch)

    def dispatch(self, action: AnyAction) -> None:
        self.log.append("dispatch")

    def consumer(self) -> Consumer:
        return Consumer(EMPTY, step=self.step, commit=self.commit, dispatch=self.dispatch)


def run_until_idle(consumer: Consumer, *events: AnyEvent) -> None:
    async def work() -> None:
        for event in events[:-1]:
            consumer.offer(event)
        running = asyncio.create_task(consumer.run())
        await consumer.post(events[-1])
        running.cancel()

    asyncio.run(work())


def test_an_action_is_dispatched_after_the_commit_of_its_event() -> None:
    shell = Shell(actions={CancelRequested: (FORGET,)})
    run_until_idle(shell.consumer(), cancel("a"))
    assert shell.log == ["commit", "dispatch"]


def test_events_that_wait_share_a_commit_in_their_order() -> None:
    shell = Shell()
    run_until_idle(shell.consumer(), cancel("a"), cancel("b"), cancel("c"))
    assert [[e.job for e in b.journal] for b in shell.batches] == [["a", "b", "c"]]


def test_announcements_are_in_the_commit_of_their_event() -> None:
    shell = Shell(actions={CancelRequested: (Announce(what="cancelled", why="asked", who="u", job="a"),)})
    run_until_idle(shell.consumer(), cancel("a", at_s=7.0))
    (line,) = shell.batches[0].events
    assert (line.at_s, line.what, line.why, line.who, line.job) == (7.0, "cancelled", "asked", "u", "a")


def test_volatile_events_are_applied_and_never_written() -> None:
    shell = Shell()
    consumer = shell.consumer()
    run_until_idle(consumer, Ticked(at_s=1.0))
    assert consumer.state.num_submitted == 1
    assert shell.log == []


def test_a_raised_event_is_journaled_with_the_tick_that_raised_it() -> None:
    passed = DeadlinePassed(at_s=1.0, subject="node:n", deadline_s=1.0)
    shell = Shell(actions={Ticked: (RaiseDurable(event=passed),), DeadlinePassed: (FORGET,)})
    run_until_idle(shell.consumer(), Ticked(at_s=1.0))
    assert shell.batches[0].journal == (passed,)
    assert shell.log == ["commit", "dispatch"]


def test_rows_are_written_with_their_event_even_if_it_is_volatile() -> None:
    shell = Shell()
    row = ProfileRow(workload="m", device_kind="d", profile_json=b"{}")

    async def work() -> None:
        consumer = shell.consumer()
        running = asyncio.create_task(consumer.run())
        await consumer.post(Ticked(at_s=1.0), rows=Batch(profiles=(row,)))
        running.cancel()

    asyncio.run(work())
    assert shell.batches == [Batch(profiles=(row,))]


def test_a_failed_commit_publishes_nothing_and_ends_the_consumer() -> None:
    shell = Shell(actions={CancelRequested: (FORGET,)}, fails=True)
    consumer = shell.consumer()
    acknowledged: list[str] = []
    consumer.offer(cancel("a"), done=lambda: acknowledged.append("a"))
    with pytest.raises(OSError, match="disk full"):
        asyncio.run(consumer.run())
    assert consumer.state is EMPTY
    assert (shell.log, acknowledged) == ([], [])


def test_a_bug_costs_one_event_and_not_the_pool() -> None:
    shell = Shell()
    run_until_idle(shell.consumer(), ProfileMissing(at_s=1.0, job="a"), cancel("b"))
    assert [type(e) for e in shell.batches[0].journal] == [CancelRequested]


def test_a_closed_consumer_takes_no_more_events() -> None:
    consumer = Shell().consumer()
    consumer.close()
    consumer.offer(cancel("a"))
    assert consumer.backlog == 0
