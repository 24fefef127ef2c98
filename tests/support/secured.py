"""Peers of a manager that speaks TLS, honest ones and others."""

import ipaddress
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc

from tests.support.manager_process import ManagerProcess
from varuna_manager.client import Client
from varuna_runtime.agent.credentials import new_key, request_for
from varuna_runtime.spec.tickets import JoinTicket, join_ticket
from varuna_runtime.wire.channels import Access, open_channel
from varuna_runtime.wire.v1 import agent_pb2, agent_pb2_grpc, join_pb2, join_pb2_grpc

CALL_S = 20.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """How a call ended."""

    code: grpc.StatusCode
    why: str


def ticket_for(client: Client, node: str, ttl_s: float = 0.0) -> JoinTicket:
    return join_ticket(client.create_ticket(node, ttl_s=ttl_s))


def joined(
    manager: ManagerProcess, ticket: JoinTicket, *, key_pem: str = "", **changes: str
) -> "Access | Refusal":
    """Spend a ticket as a machine does; `changes` are of its request."""
    key_pem = key_pem or new_key()
    fields = {"token_id": ticket.id, "secret": ticket.secret, "node": ticket.node} | changes
    request = join_pb2.JoinRequest(**fields, csr_pem=request_for(key_pem))  # type: ignore[arg-type]
    with open_channel(manager.address, Access(ca_pem=ticket.ca), ()) as channel:
        stub: Any = join_pb2_grpc.JoinStub
        try:
            made = stub(channel).Join(request, timeout=CALL_S).certificate
        except grpc.RpcError as err:
            return refusal(err)
    return Access(ca_pem=made.ca_pem.decode(), certificate_pem=made.certificate_pem.decode(), key_pem=key_pem)


def hello_of(node: str) -> agent_pb2.Hello:
    return agent_pb2.Hello(
        node=node, incarnation="i", slots=1, device_kind="cpu:test", memory_bytes=1 << 30, host="127.0.0.1"
    )


def said_hello(
    manager: ManagerProcess, access: Access | None, node: str
) -> "agent_pb2.ManagerMessage | Refusal":
    """Return the first answer to an agent's Hello."""
    hello = hello_of(node)
    with open_channel(manager.address, access, ()) as channel:
        stub: Any = agent_pb2_grpc.AgentLinkStub
        call = stub(channel).Connect(iter([agent_pb2.AgentMessage(hello=hello)]), timeout=CALL_S)
        try:
            answer: agent_pb2.ManagerMessage = next(call)
        except grpc.RpcError as err:
            return refusal(err)
    return answer


def pushed_logs(manager: ManagerProcess, access: Access, chunks: list[agent_pb2.LogChunk]) -> Refusal | None:
    """Return how a push of logs was refused, None if it was not."""
    with open_channel(manager.address, access, ()) as channel:
        stub: Any = agent_pb2_grpc.AgentLinkStub
        try:
            stub(channel).PushLogs(iter(chunks), timeout=CALL_S)
        except grpc.RpcError as err:
            return refusal(err)
    return None


def refusal(err: grpc.RpcError) -> Refusal:
    return Refusal(code=err.code(), why=err.details() or "")  # type: ignore[attr-defined]


@contextmanager
def connected(manager: ManagerProcess) -> Iterator[socket.socket]:
    host, _, port = manager.address.rpartition(":")
    with socket.create_connection((host, int(port)), timeout=CALL_S) as sock:
        yield sock


def refused_events(client: Client, containing: str) -> list[str]:
    """Return the addresses of the peers refused for that reason, by the event list."""
    return [e.who for e in client.events() if e.what == "refused" and containing in e.why]


def listening(pid: int) -> list[tuple[str, int]]:
    """Return (address, port) of every TCP socket on which a process listens."""
    try:
        links = [str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink()]
        tables = [Path(f"/proc/{pid}/net/{name}").read_text() for name in ("tcp", "tcp6")]
    except OSError:  # it has just ended
        return []
    found = []
    for line in "\n".join(tables).splitlines():
        fields = line.split()
        if len(fields) > 9 and fields[3] == "0A" and f"socket:[{fields[9]}]" in links:
            address, _, port = fields[1].partition(":")
            found.append((_address(address), int(port, 16)))
    return found


def _address(text: str) -> str:
    """Read an address as the kernel prints it: words of four bytes, each in the machine's order."""
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    found = ipaddress.ip_address(b"".join(words))
    mapped = found.ipv4_mapped if isinstance(found, ipaddress.IPv6Address) else None
    return str(mapped or found)


def wait_past(at_s: float) -> None:
    """Wait until a moment by the wall clock has passed, as a certificate's end."""
    while (left_s := at_s - time.time()) > -0.1:
        time.sleep(max(0.05, left_s))
