"""Carries the core's actions out; never waits, answers come back as events."""

import asyncio
from collections.abc import Coroutine
from typing import Any, Protocol, assert_never

import structlog

from varuna_manager.core import actions, events
from varuna_manager.means import Means
from varuna_manager.planner.request import PlanOutcome
from varuna_manager.rows import Batch, ProfileRow, plan_row
from varuna_manager.rpc import translate
from varuna_manager.secrecy import copies_secret, generation_secret
from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import InvalidInput, ObjectMissing, StoreError
from varuna_runtime.spec.layout import Infeasible
from varuna_runtime.spec.profile import Profile
from varuna_runtime.store import Store
from varuna_runtime.wire.v1 import agent_pb2

_log = structlog.get_logger()


class Offer(Protocol):
    """Feeds an event back, with rows to be written in its commit."""

    def __call__(self, event: events.AnyEvent, *, rows: Batch) -> None:
        """Queue the event."""
        ...


class Dispatcher:
    """Sends commands to agents; looks profiles up and plans in tasks of its own."""

    def __init__(self, means: Means, tasks: asyncio.TaskGroup) -> None:
        self._means = means
        self._tasks = tasks
        self._planning: dict[str, asyncio.Task[None]] = {}
        self._finding: dict[str, asyncio.Task[None]] = {}
        self._offer: Offer | None = None

    def answer_to(self, offer: Offer) -> None:
        """Say where answers go; needed before the first action."""
        self._offer = offer

    def close(self) -> None:
        """Give up every question under way."""
        for task in (*self._planning.values(), *self._finding.values()):
            task.cancel()

    def dispatch(self, action: actions.AnyAction) -> None:
        """Begin the action; doing it twice is harmless."""
        match action:
            case actions.FindProfile():
                self._replace(self._finding, action.job, self._find_profile(action))
            case actions.MakePlan():
                self._replace(self._planning, action.job, self._make_plan(action))
            case actions.StartRanks():
                self._means.links.send(action.node, action.incarnation, self._start(action))
            case actions.WarmNode():
                self._means.links.send(action.node, action.incarnation, self._warm(action))
            case actions.RaiseDurable() | actions.Announce():
                raise AssertionError(f"{type(action).__name__} is the consumer's")
            case (
                actions.ActivateRanks()
                | actions.DrainRanks()
                | actions.AbortRanks()
                | actions.RetireCopies()
                | actions.ForgetJob()
                | actions.ReleaseNode()
                | actions.FenceNode()
            ):
                self._means.links.send(action.node, action.incarnation, translate.command(action))
            case _:
                assert_never(action)

    def _start(self, action: actions.StartRanks) -> agent_pb2.ManagerMessage:
        return translate.start(
            action,
            store_url=self._means.store_url,
            secrets=self._means.secrets.get(action.job),
            generation_secret=generation_secret(self._means.generation_key, action.job, action.generation),
            copies_secret=copies_secret(self._means.generation_key, action.job),
        )

    def _warm(self, action: actions.WarmNode) -> Any:
        return translate.warm(
            action, store_url=self._means.store_url, secrets=self._means.secrets.get(action.job)
        )

    def _replace(
        self, running: dict[str, asyncio.Task[None]], job: str, question: Coroutine[Any, Any, None]
    ) -> None:
        """Ask anew: the answer to an older question of the job would be stale."""
        if job in running:
            running[job].cancel()
        running[job] = task = self._tasks.create_task(question)
        task.add_done_callback(lambda done: running.get(job) is done and running.pop(job))

    async def _make_plan(self, action: actions.MakePlan) -> None:
        try:
            answer = await self._means.plan(action.request)
        except Exception as err:  # a bug of the planner parks the job, with the reason
            _log.exception("planner failed", job=action.job)
            answer = PlanOutcome(
                outcome=Infeasible(reason=f"the planner failed: {type(err).__name__}: {err}"),
                explanation=None,
            )
        made = events.PlanMade(
            at_s=self._means.clock.now_s(),
            job=action.job,
            pool_version=action.pool_version,
            outcome=answer.outcome,
            running_step_s=answer.running_step_s,
        )
        self._answer(made, Batch(plans=(plan_row(action.job, answer),)))

    async def _find_profile(self, action: actions.FindProfile) -> None:
        found = await asyncio.to_thread(self._profile, action.workload, action.device_kind)
        at_s = self._means.clock.now_s()
        if found is None:
            self._answer(events.ProfileMissing(at_s=at_s, job=action.job), Batch())
        else:
            self._answer(events.ProfileReady(at_s=at_s, job=action.job, profile=found), Batch())

    def _profile(self, workload: str, device_kind: str) -> Profile | None:
        text = self._means.database.profile(workload, device_kind=device_kind)
        try:
            text = text or self._means.store.get(profile_key(workload, device_kind))
            return canonical.loads(Profile, text)
        except ObjectMissing:
            return None
        except (StoreError, InvalidInput) as err:
            _log.warning("cached profile unusable, measuring again", workload=workload, why=str(err))
            return None

    def _answer(self, event: events.AnyEvent, rows: Batch) -> None:
        assert self._offer is not None, "answer_to comes first"
        self._offer(event, rows=rows)


def keep_profile(store: Store, row: ProfileRow) -> None:
    """Put a measured profile where another manager over the same store finds it; failing is no harm."""
    try:
        store.put(profile_key(row.workload, row.device_kind), row.profile_json)
    except StoreError as err:
        _log.warning("profile not shared", workload=row.workload, why=str(err))


def profile_key(workload: str, device_kind: str) -> str:
    """Return the store key of a profile."""
    return f"profiles/{canonical.digest((workload, device_kind))}.json"
