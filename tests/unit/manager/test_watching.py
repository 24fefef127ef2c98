"""What the provider says of nodes, and what it does not say."""

import asyncio
import threading

from tests.support.fake_provider import FakeProvider
from varuna_manager.clock import Clock
from varuna_manager.cloud.provider import Instance
from varuna_manager.consumer import Consumer
from varuna_manager.core.config import CoreConfig
from varuna_manager.core.events import NodeJoined
from varuna_manager.core.state import State
from varuna_manager.core.step import step
from varuna_manager.links import Link, Links
from varuna_manager.watching import poll_provider, report_gone

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


def after_poll(provider: FakeProvider, *, polls: int = 1) -> tuple[str, str, int]:
    """Return what the poll said, the node's phase, and how many events were journaled."""
    num_journaled = 0

    def commit(batch: object) -> None:
        nonlocal num_journaled
        num_journaled += 1

    async def work() -> tuple[str, str]:
        consumer = Consumer(
            State(config=CoreConfig()), step=step, commit=commit, dispatch=lambda action: None
        )
        running = asyncio.create_task(consumer.run())
        await consumer.post(JOIN)
        said = ""
        for _ in range(polls):
            said = await report_gone(provider, consumer, Clock())
        running.cancel()
        return said, consumer.state.nodes["n"].phase

    said, phase = asyncio.run(work())
    return said, phase, num_journaled


def test_m15_the_cloud_saying_gone_wins_over_any_heartbeat_and_is_told_once() -> None:
    provider = FakeProvider()
    provider.adopt("n")
    provider.terminate("n")
    assert after_poll(provider, polls=3) == ("", "LEFT", 2)


def test_a_running_node_stays() -> None:
    provider = FakeProvider()
    provider.adopt("n")
    assert after_poll(provider) == ("", "READY", 1)


def test_a_node_the_provider_does_not_know_is_not_its_business() -> None:
    assert after_poll(FakeProvider()) == ("", "READY", 1)


def test_t31_m31_an_error_of_the_provider_says_nothing_about_nodes() -> None:
    provider = FakeProvider()
    provider.adopt("n")
    provider.terminate("n")
    provider.fails = "429 slow down"
    assert after_poll(provider) == ("429 slow down", "READY", 1)


class AskedProvider(FakeProvider):
    """Says when it was asked."""

    def __init__(self) -> None:
        super().__init__()
        self.asked = threading.Event()

    def list_nodes(self) -> tuple[Instance, ...]:
        self.asked.set()
        return super().list_nodes()


def test_a_stream_that_broke_has_the_provider_asked_before_the_next_round() -> None:
    provider = AskedProvider()
    links = Links()
    link = Link("n", "i")

    async def work() -> bool:
        consumer = Consumer(State(config=CoreConfig()), step=step, commit=lambda _: None, dispatch=print)
        asking = poll_provider(provider, consumer, Clock(), links.broken, every_s=3600.0)
        polling = asyncio.create_task(asking)
        links.attach(link)
        assert links.detach(link)
        is_asked = await asyncio.to_thread(provider.asked.wait, 20.0)
        polling.cancel()
        return is_asked and not links.broken.is_set()

    assert asyncio.run(work())
