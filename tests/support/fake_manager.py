"""A scripted manager: a real AgentLink server that records what agents say and sends what a test wants."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import grpc

from varuna_runtime.wire.v1 import agent_pb2, agent_pb2_grpc


class Session:
    """One connection of an agent."""

    def __init__(self, hello: agent_pb2.Hello) -> None:
        self.hello = hello
        self.outgoing: asyncio.Queue[agent_pb2.ManagerMessage | None] = asyncio.Queue()


class FakeManager(agent_pb2_grpc.AgentLinkServicer):
    def __init__(self, *, epoch: int = 1, acknowledges: bool = True) -> None:
        self.epoch = epoch
        self.acknowledges = acknowledges
        self.welcome = agent_pb2.Welcome(beat_s=0.1, lease_s=3.0, stop_on_disconnect_after_s=3600.0)
        self.sessions: list[Session] = []
        self.beats: list[agent_pb2.Beat] = []
        self.reports: list[agent_pb2.AgentMessage] = []
        self.goodbyes: list[str] = []
        self.logs: dict[tuple[str, int, int], bytearray] = {}
        self.port = 0
        self._changed = asyncio.Condition()
        self._server: grpc.aio.Server | None = None

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def __aenter__(self) -> "FakeManager":
        await self.start()
        return self

    async def __aexit__(self, *exc: object) -> None:
        await self.stop()

    async def start(self) -> None:
        self._server = grpc.aio.server(options=(("grpc.so_reuseport", 0),))
        agent_pb2_grpc.add_AgentLinkServicer_to_server(self, self._server)
        self.port = self._server.add_insecure_port(f"127.0.0.1:{self.port}")
        await self._server.start()

    async def stop(self) -> None:
        """As a kill would: streams break, nothing is said."""
        if self._server is not None:
            await self._server.stop(None)
        self._server = None

    async def send(self, **body: object) -> None:
        message = agent_pb2.ManagerMessage(epoch=self.epoch, **body)
        await self.sessions[-1].outgoing.put(message)

    async def until(self, condition: Callable[[], bool], timeout_s: float = 60.0) -> None:
        async with asyncio.timeout(timeout_s), self._changed:
            await self._changed.wait_for(condition)

    def of_kind(self, kind: str) -> list[agent_pb2.RankReport]:
        return [m.rank for m in self.reports if m.HasField("rank") and m.rank.WhichOneof("report") == kind]

    def gone(self) -> list[tuple[str, int]]:
        return [(m.gone.job, m.gone.generation) for m in self.reports if m.HasField("gone")]

    async def Connect(  # noqa: N802
        self, requests: AsyncIterator[agent_pb2.AgentMessage], context: grpc.aio.ServicerContext
    ) -> AsyncIterator[agent_pb2.ManagerMessage]:
        first = await anext(aiter(requests))
        session = Session(first.hello)
        self.sessions.append(session)
        yield agent_pb2.ManagerMessage(epoch=self.epoch, welcome=self.welcome)
        await self._notify()
        reading = asyncio.ensure_future(self._read(requests, session))
        try:
            while (message := await session.outgoing.get()) is not None:
                yield message
        finally:
            reading.cancel()

    async def PushLogs(  # noqa: N802
        self, requests: AsyncIterator[agent_pb2.LogChunk], context: grpc.aio.ServicerContext
    ) -> agent_pb2.LogAck:
        async for chunk in requests:
            log = self.logs.setdefault((chunk.job, chunk.generation, chunk.rank), bytearray())
            assert chunk.offset <= len(log), "a gap"
            log[chunk.offset :] = chunk.data
        await self._notify()
        return agent_pb2.LogAck()

    async def _read(self, requests: AsyncIterator[agent_pb2.AgentMessage], session: Session) -> None:
        with contextlib.suppress(grpc.RpcError):
            async for message in requests:
                await self._hear(message, session)
        await session.outgoing.put(None)

    async def _hear(self, message: agent_pb2.AgentMessage, session: Session) -> None:
        if message.HasField("beat"):
            self.beats.append(message.beat)
        elif message.HasField("goodbye"):
            self.goodbyes.append(message.goodbye.reason)
        else:
            self.reports.append(message)
            if self.acknowledges:
                ack = agent_pb2.Ack(seq=message.seq)
                await session.outgoing.put(agent_pb2.ManagerMessage(epoch=self.epoch, ack=ack))
        await self._notify()

    async def _notify(self) -> None:
        async with self._changed:
            self._changed.notify_all()
