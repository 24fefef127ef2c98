"""What the keeper does with real threads and a real consumer: gone nodes, hanging providers, kicks, hooks."""

import asyncio
import threading
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack

from tests.support.core_records import MODEL, job_spec
from tests.support.fake_provider import FakeProvider
from varuna_manager.calls import Calls
from varuna_manager.clock import Clock
from varuna_manager.cloud.provider import PoolReading, Provider, ProviderError, Trouble
from varuna_manager.consumer import Consumer
from varuna_manager.core.config import CoreConfig
from varuna_manager.core.events import JobSubmitted, NodeJoined
from varuna_manager.core.state import State
from varuna_manager.core.step import step
from varuna_manager.keeper import Keeper
from varuna_manager.links import Link, Links
from varuna_manager.pool_settings import Sizing
from varuna_manager.rows import Batch
from varuna_manager.sizing.books import Books
from varuna_manager.sizing.decisions import Failed
from varuna_manager.sizing.settings import Rules, Settings

JOIN = NodeJoined(
    at_s=1.0,
    node="n",
    incarnation="i",
    slots=1,
    device_kind="cpu:x",
    memory_bytes=1,
    host="h",
    notices="file",
    pid=1,
    running=(),
)
LATER_S = 3600.0


class Scene:
    """A keeper over fake providers, and what was journaled."""

    def __init__(
        self, poll_s: float, *, is_sized: bool, call_timeout_s: float = 30.0, **providers: Provider
    ) -> None:
        rules = tuple(
            Rules(
                pool=name,
                provider="fake",
                min=0,
                max=8,
                price=None,
                is_sized=is_sized,
                poll_s=poll_s,
                is_near=True,
            )
            for name in providers
        )
        self.journaled: list[object] = []
        self.links = Links()
        self.books = Books(Settings(rules=rules, sizing=Sizing()))
        self.consumer = Consumer(
            State(config=CoreConfig()), step=step, commit=self._commit, dispatch=lambda action: None
        )
        self.readings: list[tuple[str, PoolReading]] = []
        self.keeper = Keeper(
            providers,
            self.books,
            self.consumer,
            Clock(),
            on_reading=self._on_reading,
            call_timeout_s=call_timeout_s,
        )

    async def _on_reading(self, pool: str, reading: PoolReading) -> None:
        self.readings.append((pool, reading))
        if len(self.readings) == 1:
            raise RuntimeError("the hand-over is not there")

    def _commit(self, batch: Batch) -> None:
        self.journaled.extend(batch.journal)

    @property
    def phase(self) -> str:
        return self.consumer.state.nodes["n"].phase


def play(scene: Scene, act: Callable[[Scene], Awaitable[None]], *, joins: bool = True) -> None:
    async def work() -> None:
        async with AsyncExitStack() as stack:
            for task in (scene.consumer.run(),):
                running = asyncio.create_task(task)
                stack.callback(running.cancel)
            if joins:
                await scene.consumer.post(JOIN)
            await asyncio.wait_for(act(scene), 30.0)

    asyncio.run(work())


async def eventually(claim: Callable[[], bool]) -> None:
    while not claim():  # noqa: ASYNC110 - the claim reads what other threads change
        await asyncio.sleep(0.01)


async def kept(scene: Scene, claim: Callable[[], bool]) -> None:
    """Run the keeper until `claim` holds."""
    keeping = asyncio.create_task(scene.keeper.run(scene.links.broken))
    try:
        await eventually(claim)
    finally:
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)


def looked(provider: FakeProvider, *, times: int = 1) -> tuple[str, int]:
    """Return the phase of the node after that many looks, and how many events were journaled."""
    scene = Scene(LATER_S, is_sized=False, local=provider)

    async def act(scene: Scene) -> None:
        for _ in range(times):
            await scene.keeper.look()

    play(scene, act)
    return scene.phase, len(scene.journaled)


def test_m15_the_cloud_saying_gone_wins_over_any_heartbeat_and_is_told_once() -> None:
    provider = FakeProvider()
    provider.adopt("n")
    provider.terminate("n")
    assert looked(provider, times=3) == ("LEFT", 2)


def test_a_running_node_stays() -> None:
    provider = FakeProvider()
    provider.adopt("n")
    joined_and_placed = ("READY", 2)
    assert looked(provider) == looked(provider, times=3) == joined_and_placed


def test_a_node_the_provider_does_not_know_is_not_its_business() -> None:
    assert looked(FakeProvider()) == ("READY", 1)


def test_t31_m31_an_error_of_the_provider_says_nothing_about_nodes() -> None:
    provider = FakeProvider()
    provider.adopt("n")
    provider.terminate("n")
    provider.fails = "429 slow down"
    phase, num_journaled = looked(provider)
    assert phase == "READY"
    assert num_journaled == 2  # the join, and the line about the trouble


class HangingProvider(FakeProvider):
    """Answers nothing until it is let go; counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.let_answer = threading.Event()
        self.num_reads = 0

    def read(self, now_s: float) -> PoolReading:
        self.num_reads += 1
        self.let_answer.wait(60.0)
        return super().read(now_s)


def test_a_hanging_provider_holds_up_no_other_and_piles_up_no_threads() -> None:
    hanging, other = HangingProvider(), FakeProvider()
    other.adopt("n")
    scene = Scene(0.02, is_sized=False, call_timeout_s=0.2, hanging=hanging, other=other)

    async def act(scene: Scene) -> None:
        await scene.keeper.look()
        other.terminate("n")
        await kept(scene, lambda: scene.phase == "LEFT")
        failed = scene.books.memory.of("hanging").failed
        assert failed is not None
        assert failed.trouble is Trouble.RETRY
        assert hanging.num_reads == 1
        hanging.let_answer.set()
        await kept(scene, lambda: scene.books.memory.of("hanging").reading is not None)

    play(scene, act)


class AskedProvider(FakeProvider):
    """Says how often it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.num_reads = 0

    def read(self, now_s: float) -> PoolReading:
        self.num_reads += 1
        return super().read(now_s)


def test_a_stream_that_broke_has_the_provider_asked_before_the_next_round() -> None:
    provider = AskedProvider()
    scene = Scene(LATER_S, is_sized=False, local=provider)

    async def act(scene: Scene) -> None:
        await kept(scene, lambda: provider.num_reads == 1)
        scene.links.attach(link := Link("n", "i"))
        assert scene.links.detach(link)
        await kept(scene, lambda: provider.num_reads > 2)
        assert not scene.links.broken.is_set()

    play(scene, act)


def test_a_job_has_the_pool_grow_at_once_and_its_end_frees_nothing_that_is_busy() -> None:
    provider = FakeProvider()
    scene = Scene(LATER_S, is_sized=True, local=provider)

    async def act(scene: Scene) -> None:
        keeping = asyncio.create_task(scene.keeper.run(scene.links.broken))
        await eventually(lambda: bool(scene.books.memory.pools))
        await scene.consumer.post(
            JobSubmitted(
                at_s=1.0,
                job="j",
                spec=job_spec("j", max=3),
                model=MODEL,
                bundle="b" * 64,
                user="ana",
                request_id="r",
            )
        )
        await eventually(lambda: len(provider.list_nodes()) == 3)
        keeping.cancel()
        await asyncio.gather(keeping, return_exceptions=True)

    play(scene, act, joins=False)


def test_every_fresh_reading_is_handed_on_and_a_hook_that_fails_harms_nothing() -> None:
    provider = FakeProvider()
    scene = Scene(0.01, is_sized=False, local=provider)

    async def act(scene: Scene) -> None:
        await kept(scene, lambda: len(scene.readings) > 2)

    play(scene, act)
    assert {pool for pool, _ in scene.readings} == {"local"}


class BrokenProvider(FakeProvider):
    """An adapter with a bug."""

    def read(self, now_s: float) -> PoolReading:
        raise KeyError("PowerState")


def test_a_bug_of_an_adapter_is_a_trouble_of_its_pool() -> None:
    scene = Scene(LATER_S, is_sized=False, local=BrokenProvider())

    async def act(scene: Scene) -> None:
        await scene.keeper.look()

    play(scene, act)
    failed = scene.books.memory.of("local").failed
    assert failed is not None
    assert (failed.trouble, failed.message) == (Trouble.UNKNOWN, "KeyError: 'PowerState'")


def test_a_call_keeps_what_the_provider_said_of_its_failure() -> None:
    def refuse() -> None:
        raise ProviderError("slow down", trouble=Trouble.THROTTLED, retry_after_s=7.0)

    found = asyncio.run(Calls[None]("x", within_s=20.0).call(refuse))
    assert found == Failed(trouble=Trouble.THROTTLED, message="slow down", retry_after_s=7.0)
