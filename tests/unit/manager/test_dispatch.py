"""Answers come back as events; failures of the planner and of the store are answers too."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support.fake_agent import profile_of
from tests.support.manager_process import model, submission
from varuna_manager.clock import Clock
from varuna_manager.core import actions, events
from varuna_manager.dispatch import Dispatcher, keep_profile, profile_key
from varuna_manager.links import Link, Links
from varuna_manager.means import Means
from varuna_manager.persistence import Database
from varuna_manager.planner.request import PlanOutcome, PlanRequest
from varuna_manager.rows import Batch, ProfileRow
from varuna_manager.secrecy import SecretBox
from varuna_runtime.spec import canonical
from varuna_runtime.spec.layout import Infeasible
from varuna_runtime.store import open_store

NO = PlanOutcome(outcome=Infeasible(reason="too small"), explanation=None)
REQUEST = PlanRequest(
    spec=submission("b").spec, model=model(), profile=profile_of(model()), nodes=(), batch=None
)
PROFILE = canonical.dumps(profile_of(model()))
ROW = ProfileRow(workload=model().hash(), device_kind="cpu:test", profile_json=PROFILE)


class Shell:
    """A dispatcher with everything around it, answers recorded."""

    def __init__(self, folder: Path) -> None:
        self.answers: list[tuple[events.AnyEvent, Batch]] = []
        self.database = Database(folder / "journal.sqlite")
        self.store = open_store((folder / "store").as_uri())
        self.links = Links()
        self.plans: list[PlanOutcome | Exception] = []

    async def plan(self, request: PlanRequest) -> PlanOutcome:
        answer = self.plans.pop(0)
        await asyncio.sleep(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def offer(self, event: events.AnyEvent, *, rows: Batch) -> None:
        self.answers.append((event, rows))

    def dispatch(self, *asked: actions.AnyAction, after: Callable[[Dispatcher], None] | None = None) -> None:
        async def work() -> None:
            async with asyncio.TaskGroup() as tasks:
                dispatcher = Dispatcher(self._means(), tasks)
                dispatcher.answer_to(self.offer)
                for action in asked:
                    dispatcher.dispatch(action)
                if after is not None:
                    after(dispatcher)

        asyncio.run(work())

    def _means(self) -> Means:
        return Means(
            links=self.links,
            database=self.database,
            store=self.store,
            store_url="file:///s",
            secrets=SecretBox(Path("/nonexistent")),
            generation_key=b"k",
            clock=Clock(),
            plan=self.plan,
        )


@pytest.fixture
def shell(tmp_path: Path) -> Shell:
    return Shell(tmp_path)


def make_plan(version: int, job: str = "j") -> actions.MakePlan:
    return actions.MakePlan(job=job, pool_version=version, request=REQUEST)


FIND = actions.FindProfile(job="j", workload=model().hash(), device_kind="cpu:test")


def test_a_plan_comes_back_with_its_pool_version_and_its_row(shell: Shell) -> None:
    shell.plans = [NO]
    shell.dispatch(make_plan(4))
    ((event, rows),) = shell.answers
    assert isinstance(event, events.PlanMade)
    assert (event.pool_version, event.outcome) == (4, NO.outcome)
    assert [row.reason for row in rows.plans] == ["too small"]


def test_a_newer_question_of_a_job_replaces_the_older_but_not_that_of_another(shell: Shell) -> None:
    shell.plans = [NO, NO, NO]
    shell.dispatch(make_plan(1), make_plan(1, job="k"), make_plan(2))
    versions = {(e.job, e.pool_version) for e, _ in shell.answers if isinstance(e, events.PlanMade)}
    assert versions == {("j", 2), ("k", 1)}


def test_a_bug_of_the_planner_is_an_infeasible_plan_with_the_reason(shell: Shell) -> None:
    shell.plans = [ZeroDivisionError("oh")]
    shell.dispatch(make_plan(1))
    event = shell.answers[0][0]
    assert isinstance(event, events.PlanMade)
    assert event.outcome == Infeasible(reason="the planner failed: ZeroDivisionError: oh")


def test_closing_gives_up_what_is_under_way(shell: Shell) -> None:
    shell.plans = [NO]
    shell.dispatch(make_plan(1), after=Dispatcher.close)
    assert shell.answers == []


def test_a_profile_is_missing_until_it_was_measured(shell: Shell) -> None:
    shell.dispatch(FIND)
    assert [type(e) for e, _ in shell.answers] == [events.ProfileMissing]


def test_a_profile_is_found_in_the_database(shell: Shell) -> None:
    shell.database.commit(Batch(profiles=(ROW,)))
    shell.dispatch(FIND)
    event = shell.answers[0][0]
    assert isinstance(event, events.ProfileReady)
    assert event.profile == profile_of(model())


def test_a_profile_of_another_manager_is_found_in_the_store(shell: Shell) -> None:
    keep_profile(shell.store, ROW)
    shell.dispatch(FIND)
    assert [type(e) for e, _ in shell.answers] == [events.ProfileReady]


def test_an_unreadable_profile_counts_as_missing(shell: Shell) -> None:
    shell.store.put(profile_key(ROW.workload, ROW.device_kind), b"{")
    shell.dispatch(FIND)
    assert [type(e) for e, _ in shell.answers] == [events.ProfileMissing]


def test_a_command_goes_to_the_link_of_its_incarnation(shell: Shell) -> None:
    link = Link("n", "i")
    shell.links.attach(link)
    shell.dispatch(actions.ForgetJob(node="n", incarnation="i", job="j"))
    shell.dispatch(actions.ForgetJob(node="n", incarnation="older", job="k"))
    assert [m.forget.job for m in asyncio.run(link.outgoing())] == ["j"]


def test_a_node_to_be_warmed_is_sent_the_jobs_bundle_and_store(shell: Shell) -> None:
    link = Link("n", "i")
    shell.links.attach(link)
    spec = submission("b").spec
    shell.dispatch(actions.WarmNode(node="n", incarnation="i", job="j", spec=spec, bundle="b" * 64))
    (message,) = asyncio.run(link.outgoing())
    assert (message.warm.job, message.warm.bundle) == ("j", "b" * 64)
    assert message.warm.bundle_store_url == "file:///s"
