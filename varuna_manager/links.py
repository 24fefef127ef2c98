"""Live control streams to agents: bounded queues out, one stream a node and incarnation."""

import asyncio
from collections import deque

import structlog

from varuna_runtime.wire.v1 import agent_pb2

_log = structlog.get_logger()


class Link:
    """What waits to be sent to one agent. An agent that does not read is dropped, never waited for."""

    def __init__(
        self, node: str, incarnation: str, *, max_messages: int = 1024, max_bytes: int = 32 * 2**20
    ) -> None:
        self.node = node
        self.incarnation = incarnation
        self.end_reason = ""
        self._max_messages = max_messages
        self._max_bytes = max_bytes
        self._waiting: deque[agent_pb2.ManagerMessage] = deque()
        self._waiting_bytes = 0
        self._acked = 0
        self._acked_sent = 0
        self._wake = asyncio.Event()
        self.ended = asyncio.Event()

    def send(self, message: agent_pb2.ManagerMessage) -> None:
        """Queue a message; ends the link when too much is waiting already."""
        self._waiting.append(message)
        self._waiting_bytes += message.ByteSize()
        if len(self._waiting) > self._max_messages or self._waiting_bytes > self._max_bytes:
            self.end(f"does not read: {len(self._waiting)} messages ({self._waiting_bytes} bytes) waiting")
        self._wake.set()

    def acknowledge(self, seq: int) -> None:
        """Note that everything up to `seq` is journaled; several notes become one message."""
        self._acked = max(self._acked, seq)
        self._wake.set()

    def acknowledge_again(self, seq: int) -> None:
        """Repeat an acknowledgement the agent did not hear."""
        self._acked_sent = min(self._acked_sent, seq - 1)
        self.acknowledge(seq)

    def end(self, reason: str) -> None:
        """Close the stream; the first reason counts."""
        self.end_reason = self.end_reason or reason
        self.ended.set()

    async def outgoing(self) -> list[agent_pb2.ManagerMessage]:
        """Wait for something to send, and take it."""
        await self._wake.wait()
        self._wake.clear()
        taken = list(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        if self._acked > self._acked_sent:
            self._acked_sent = self._acked
            taken.append(agent_pb2.ManagerMessage(ack=agent_pb2.Ack(seq=self._acked)))
        return taken


class Links:
    """The live links by node and incarnation, and how far each incarnation's reports are journaled."""

    def __init__(self) -> None:
        self._links: dict[tuple[str, str], Link] = {}
        self._committed: dict[tuple[str, str], int] = {}
        self.broken = asyncio.Event()
        """Set when an agent's last stream ended: something may have happened to its node."""

    def attach(self, link: Link) -> None:
        """Make `link` the one of its incarnation; an older stream of it ends."""
        old = self._links.get((link.node, link.incarnation))
        if old is not None:
            old.end("replaced by a newer connection of the same agent")
        self._links[link.node, link.incarnation] = link

    def detach(self, link: Link) -> bool:
        """Forget `link`; False when a newer one has its place already."""
        key = (link.node, link.incarnation)
        if self._links.get(key) is not link:
            return False
        del self._links[key]
        self.broken.set()
        return True

    def send(self, node: str, incarnation: str, message: agent_pb2.ManagerMessage) -> None:
        """Queue a message; without a link it is dropped: the agent hears what it needs when it is back."""
        link = self._links.get((node, incarnation))
        if link is None:
            body = message.WhichOneof("body")
            _log.info("not connected", node=node, incarnation=incarnation, message=body)
            return
        link.send(message)

    def committed(self, link: Link) -> int:
        """Return the highest journaled report of an incarnation of a node, as far as this process knows."""
        return self._committed.get((link.node, link.incarnation), 0)

    def commit(self, link: Link, seq: int) -> None:
        """Note a journaled report and acknowledge it on whatever stream the incarnation has now."""
        self._committed[link.node, link.incarnation] = max(seq, self.committed(link))
        current = self._links.get((link.node, link.incarnation))
        if current is not None:
            current.acknowledge(seq)
