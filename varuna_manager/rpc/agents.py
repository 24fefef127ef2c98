"""The AgentLink service: what agents say becomes events, acknowledged once those are journaled."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import grpc
import structlog

from varuna_manager.clock import Clock
from varuna_manager.consumer import Consumer
from varuna_manager.core import events
from varuna_manager.links import Link, Links
from varuna_manager.logbook import Logbook, LogFile
from varuna_manager.rows import Batch, ProfileRow
from varuna_manager.rpc import joins, metrics, standing, translate
from varuna_manager.rpc.callers import calling, refuse_other_node
from varuna_manager.rpc.refusals import refusals
from varuna_manager.security.desk import Desk
from varuna_runtime.spec import canonical
from varuna_runtime.spec.errors import Conflict, InvalidInput
from varuna_runtime.wire.v1 import agent_pb2, agent_pb2_grpc

_log = structlog.get_logger()
_MAX_UNACKED = 256
_MAX_BACKLOG = 20_000
_SHOWN = 500  # characters of what an agent may say in one line

Messages = AsyncIterator[agent_pb2.AgentMessage]
Context = grpc.aio.ServicerContext[Any, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkSettings:
    """What agents are told, and how patient the manager is with them."""

    epoch: int
    beat_s: float
    lease_s: float
    stop_on_disconnect_after_s: float
    hello_within_s: float = 10.0
    read_within_s: float = 10.0  # a peer whose transport takes nothing for this long is dropped


class AgentLinkService(agent_pb2_grpc.AgentLinkServicer):
    """One `Connect` call is one agent's control stream."""

    def __init__(
        self,
        consumer: Consumer,
        links: Links,
        logbook: Logbook,
        clock: Clock,
        settings: LinkSettings,
        desk: Desk | None = None,
    ) -> None:
        self._consumer = consumer
        self._links = links
        self._logbook = logbook
        self._clock = clock
        self._settings = settings
        self._desk = desk
        self._log_lock = asyncio.Lock()

    async def Connect(self, requests: Messages, context: Context) -> None:  # noqa: N802
        """Serve an agent until either side ends the stream."""
        try:
            joined = await self._joined(requests)
        except InvalidInput as err:
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, str(err))
        refuse_other_node(joined.node)
        link = Link(joined.node, joined.incarnation)
        link.send(agent_pb2.ManagerMessage(welcome=self._welcome()))
        self._links.attach(link)
        try:
            self._consumer.offer(joined)
            await self._until_one_ends(
                link, self._receive(requests, link), self._transmit(link, context.write), link.ended.wait()
            )
        finally:
            self._ended(link)

    async def PushLogs(  # noqa: N802
        self, requests: AsyncIterator[agent_pb2.LogChunk], context: Context
    ) -> agent_pb2.LogAck:
        """Append log chunks of the node's own ranks; the reply means that they are in the files.

        Others are dropped, since a node that was refused would send them again and again.
        """
        async for chunk in requests:
            refuse_other_node(chunk.node)
            rank = max(chunk.rank, -1)
            log = LogFile(generation=chunk.generation, rank=rank, node=chunk.node if rank < 0 else "")
            if not standing.may_log(
                self._consumer.state, chunk.node, job=chunk.job, generation=log.generation, rank=log.rank
            ):
                _log.warning("log dropped", why="of no job of that node", node=chunk.node[:_SHOWN])
                continue
            async with self._log_lock:
                await asyncio.to_thread(self._logbook.append, chunk.job, log, chunk.offset, chunk.data)
        return agent_pb2.LogAck()

    async def Renew(self, request: agent_pb2.RenewRequest, context: Context) -> agent_pb2.Certificate:  # noqa: N802
        """Return a fresh certificate for the node whose present one secures the connection."""
        async with refusals(context):
            caller = calling.get()
            if self._desk is None or caller is None:
                raise Conflict("this manager speaks plain text; there are no certificates to renew")
            issued = self._desk.renewed(caller.node, request.csr_pem)
            return joins.certificate(issued, self._desk.authority.ca_pem)

    def _welcome(self) -> agent_pb2.Welcome:
        return agent_pb2.Welcome(
            beat_s=self._settings.beat_s,
            lease_s=self._settings.lease_s,
            stop_on_disconnect_after_s=self._settings.stop_on_disconnect_after_s,
        )

    async def _joined(self, requests: Messages) -> events.NodeJoined:
        try:
            async with asyncio.timeout(self._settings.hello_within_s):
                first = await anext(requests)
        except (TimeoutError, StopAsyncIteration) as err:
            raise InvalidInput("the stream carried no message; wanted Hello") from err
        if first.WhichOneof("body") != "hello":
            raise InvalidInput(f"first message: seen {first.WhichOneof('body')}, wanted Hello")
        return translate.joined(first.hello, self._clock.now_s())

    async def _until_one_ends(self, link: Link, *parts: Awaitable[object]) -> None:
        running = [asyncio.ensure_future(part) for part in parts]
        try:
            await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for part in running:
                part.cancel()
            results = await asyncio.gather(*running, return_exceptions=True)
        for result in results:
            if isinstance(result, InvalidInput):
                link.end(f"sent what it may not: {result}")
            elif isinstance(result, Exception):
                link.end(f"its stream broke: {result or type(result).__name__}")

    async def _receive(self, requests: Messages, link: Link) -> None:
        unacked = asyncio.Semaphore(_MAX_UNACKED)
        async for message in requests:
            if message.seq == 0 and message.HasField("goodbye"):  # the last word: it waits for no answer
                for event, rows in self._events(message, link):
                    self._consumer.offer(event, rows=rows)
            elif message.seq == 0:
                self._beat(message, link)
            elif message.seq <= self._links.committed(link):
                link.acknowledge_again(message.seq)
            else:
                await unacked.acquire()
                self._report(message, link, unacked.release)
        link.end("its stream ended")

    async def _transmit(self, link: Link, write: Callable[[Any], Awaitable[None]]) -> None:
        while True:
            for message in await link.outgoing():
                message.epoch = self._settings.epoch
                try:
                    async with asyncio.timeout(self._settings.read_within_s):
                        await write(message)
                except TimeoutError:
                    link.end(f"does not read: nothing taken for {self._settings.read_within_s:g} s")
                    return

    def _beat(self, message: agent_pb2.AgentMessage, link: Link) -> None:
        if message.WhichOneof("body") != "beat":
            raise InvalidInput(f"{message.WhichOneof('body')} without a seq")
        if self._consumer.backlog < _MAX_BACKLOG:
            running = translate.running(message.beat.running)
            at_s = self._clock.now_s()
            self._consumer.offer(
                events.BeatSeen(at_s=at_s, node=link.node, incarnation=link.incarnation, running=running)
            )

    def _report(self, message: agent_pb2.AgentMessage, link: Link, release: Callable[[], None]) -> None:
        found = self._events(message, link)
        done = partial(self._committed, link, message.seq, release)
        for event, rows in found[:-1]:
            self._consumer.offer(event, rows=rows)
        # One that says nothing waits its turn too: an acknowledgement stands for all before it.
        event, rows = found[-1] if found else (events.Ticked(at_s=self._clock.now_s()), Batch())
        self._consumer.offer(event, rows=rows, done=done)

    def _committed(self, link: Link, seq: int, release: Callable[[], None]) -> None:
        self._links.commit(link, seq)
        release()

    def _events(self, message: agent_pb2.AgentMessage, link: Link) -> list[tuple[events.AnyEvent, Batch]]:
        if not self._is_its_own(message, link):
            _log.warning("report dropped", why="of no rank of that node", node=link.node, seq=message.seq)
            return []
        at_s = self._clock.now_s()
        match message.WhichOneof("body"):
            case "rank" if message.rank.HasField("evaluation"):
                row = metrics.evaluation_row(message.rank.evaluation, message.rank.job, at_s)
                return [(events.Ticked(at_s=at_s), Batch(metrics=(row,)))]
            case "rank":
                return [(e, self._rows(e, message.rank)) for e in translate.rank_events(message.rank, at_s)]
            case "steps":
                seen = translate.steps(message.steps, at_s)
                rows = metrics.step_rows(message.steps, at_s)
                return [
                    (s, Batch(steps=(translate.step_row(s),), metrics=(m,)))
                    for s, m in zip(seen, rows, strict=True)
                ]
            case "notice":
                return [(translate.notice(message.notice, link.node, link.incarnation, at_s), Batch())]
            case "notices":
                changed = translate.notices_changed(message.notices, link.node, link.incarnation, at_s)
                return [(changed, Batch())]
            case "gone":
                gone = message.gone
                event = events.GenerationGone(
                    at_s=at_s, job=gone.job, generation=gone.generation, node=link.node
                )
                return [(event, Batch())]
            case "warm":
                return [(translate.warmed(message.warm, link.node, link.incarnation, at_s), Batch())]
            case "goodbye":
                reason = message.goodbye.reason[:_SHOWN] or "said goodbye"
                left = events.NodeLeft(at_s=at_s, node=link.node, incarnation=link.incarnation, reason=reason)
                return [(left, Batch())]
            case body:
                raise InvalidInput(f"report {message.seq}: seen {body}, wanted a report")

    def _is_its_own(self, message: agent_pb2.AgentMessage, link: Link) -> bool:
        """Return whether a report about a job is about the node's own part of it."""
        state, node = self._consumer.state, link.node
        match message.WhichOneof("body"):
            case "rank":
                rank = message.rank
                return standing.may_report(
                    state, node, job=rank.job, generation=rank.generation, rank=rank.rank
                )
            case "steps":
                steps = message.steps
                teller = steps.rank if steps.HasField("rank") else None
                return standing.may_report(
                    state, node, job=steps.job, generation=steps.generation, rank=teller
                )
            case "warm":
                return standing.is_of(state, node, job=message.warm.job)
            case _:
                return True

    def _ended(self, link: Link) -> None:
        if not self._links.detach(link):
            return
        reason = link.end_reason or "its connection broke"
        self._consumer.offer(
            events.NodeDisconnected(
                at_s=self._clock.now_s(), node=link.node, incarnation=link.incarnation, reason=reason
            )
        )

    def _rows(self, event: events.AnyEvent, report: agent_pb2.RankReport) -> Batch:
        """Keep a measured profile for later jobs of the same workload, and steps told again."""
        job = self._consumer.state.jobs.get(report.job)
        match event:
            case events.ProfileReady(profile=profile) if job is not None:
                row = ProfileRow(
                    workload=job.workload,
                    device_kind=profile.device_kind,
                    profile_json=canonical.dumps(profile),
                )
                return Batch(profiles=(row,))
            case events.RankActive() if job is not None:
                return Batch(
                    steps=translate.earlier_steps(report, event.at_s),
                    metrics=metrics.earlier_rows(report, event.at_s),
                )
            case _:
                return Batch()
