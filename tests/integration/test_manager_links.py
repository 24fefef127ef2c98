"""The control stream under a peer that misbehaves, with a server in this process."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, cast

import grpc
import pytest

from varuna_manager.clock import Clock
from varuna_manager.consumer import Consumer
from varuna_manager.core.config import CoreConfig
from varuna_manager.core.events import AnyEvent, Durable, NodeDisconnected, NodeJoined
from varuna_manager.core.state import State
from varuna_manager.core.step import step
from varuna_manager.links import Links
from varuna_manager.logbook import Logbook
from varuna_manager.rows import Batch
from varuna_manager.rpc.agents import AgentLinkService, LinkSettings
from varuna_runtime.wire.v1 import agent_pb2, agent_pb2_grpc

HELLO = agent_pb2.AgentMessage(
    hello=agent_pb2.Hello(node="n", incarnation="i", slots=1, memory_bytes=1, device_kind="cpu:x")
)
BULK = agent_pb2.ManagerMessage(start=agent_pb2.Start(plan_json=b"x" * 2**20))


class Served:
    """An AgentLink server whose journal is a list, and a peer's stream to it."""

    def __init__(self, folder: Path, read_within_s: float) -> None:
        self.journal: list[Durable] = []
        self.links = Links()
        self._grown = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self.consumer = Consumer(
            State(config=CoreConfig()), step=step, commit=self._commit, dispatch=lambda action: None
        )
        settings = LinkSettings(
            epoch=7,
            beat_s=0.3,
            lease_s=3.0,
            stop_on_disconnect_after_s=60.0,
            hello_within_s=0.3,
            read_within_s=read_within_s,
        )
        logbook = Logbook(folder, max_job_bytes=4096, mask=lambda job, text: text)
        self.service = AgentLinkService(self.consumer, self.links, logbook, Clock(), settings)

    async def journaled(self, kind: type[AnyEvent]) -> Any:
        """Wait for an event of that kind."""
        async with asyncio.timeout(20):
            while not (found := [e for e in self.journal if isinstance(e, kind)]):
                self._grown.clear()
                await self._grown.wait()
        return found[-1]

    def _commit(self, batch: Batch) -> None:
        self.journal.extend(batch.journal)
        self._loop.call_soon_threadsafe(self._grown.set)


@asynccontextmanager
async def served(folder: Path, *, read_within_s: float = 10.0) -> AsyncIterator[tuple[Served, Any]]:
    made = Served(folder, read_within_s)
    server = grpc.aio.server()
    cast(Any, agent_pb2_grpc).add_AgentLinkServicer_to_server(made.service, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    running = asyncio.create_task(made.consumer.run())
    try:
        async with grpc.aio.insecure_channel(f"127.0.0.1:{port}") as channel:
            yield made, cast(Any, agent_pb2_grpc).AgentLinkStub(channel)
    finally:
        running.cancel()
        await server.stop(0)


def test_the_welcome_comes_first_and_carries_epoch_and_times(tmp_path: Path) -> None:
    async def work() -> agent_pb2.ManagerMessage:
        async with served(tmp_path) as (_, stub):
            stream = stub.Connect()
            await stream.write(HELLO)
            return cast(agent_pb2.ManagerMessage, await stream.read())

    first = asyncio.run(work())
    assert (first.epoch, first.welcome.beat_s, first.welcome.lease_s) == (7, 0.3, 3.0)


def test_a_peer_whose_transport_takes_nothing_is_dropped_with_a_reason(tmp_path: Path) -> None:
    async def work() -> str:
        async with served(tmp_path, read_within_s=0.2) as (made, stub):
            stream = stub.Connect()
            await stream.write(HELLO)
            await made.journaled(NodeJoined)
            for _ in range(20):
                made.links.send("n", "i", BULK)
            return cast(str, (await made.journaled(NodeDisconnected)).reason)

    assert "does not read: nothing taken for 0.2 s" in asyncio.run(work())


def test_a_peer_that_reads_too_slowly_is_dropped_when_too_much_waits(tmp_path: Path) -> None:
    async def work() -> str:
        async with served(tmp_path) as (made, stub):
            stream = stub.Connect()
            await stream.write(HELLO)
            await made.journaled(NodeJoined)
            for _ in range(100):
                made.links.send("n", "i", BULK)
            return cast(str, (await made.journaled(NodeDisconnected)).reason)

    assert asyncio.run(work()).startswith("does not read: ")


def test_a_cancelled_stream_is_a_disconnect(tmp_path: Path) -> None:
    async def work() -> NodeDisconnected:
        async with served(tmp_path) as (made, stub):
            stream = stub.Connect()
            await stream.write(HELLO)
            await made.journaled(NodeJoined)
            stream.cancel()
            return cast(NodeDisconnected, await made.journaled(NodeDisconnected))

    assert asyncio.run(work()).incarnation == "i"


def test_a_report_without_a_seq_drops_its_sender_with_a_reason(tmp_path: Path) -> None:
    async def work() -> str:
        async with served(tmp_path) as (made, stub):
            stream = stub.Connect()
            await stream.write(HELLO)
            await stream.write(agent_pb2.AgentMessage(gone=agent_pb2.GenerationGone(job="j", generation=1)))
            return cast(str, (await made.journaled(NodeDisconnected)).reason)

    assert "gone without a seq" in asyncio.run(work())


def test_a_silent_peer_is_refused_before_it_becomes_a_node(tmp_path: Path) -> None:
    async def work() -> list[Durable]:
        async with served(tmp_path) as (made, stub):
            stream = stub.Connect()
            with pytest.raises(grpc.aio.AioRpcError, match="wanted Hello"):
                await stream.read()
            return made.journal

    assert asyncio.run(work()) == []
