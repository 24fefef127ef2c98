"""A real manager that speaks TLS: who is let in, who is not, and what is told about it."""

import time
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import grpc
import pytest

from tests.support.manager_process import ManagerProcess, eventually, submission
from tests.support.secured import (
    CALL_S,
    Refusal,
    connected,
    hello_of,
    joined,
    listening,
    pushed_logs,
    refusal,
    refused_events,
    said_hello,
    ticket_for,
    wait_past,
)
from varuna_manager.client import Client, access_of
from varuna_manager.security.authority import Authority
from varuna_runtime.agent.credentials import new_key, request_for
from varuna_runtime.spec.errors import AccessRefused, InvalidInput, NotFound
from varuna_runtime.spec.tickets import user_token
from varuna_runtime.wire.channels import Access, open_channel
from varuna_runtime.wire.v1 import (
    agent_pb2,
    agent_pb2_grpc,
    client_pb2,
    client_pb2_grpc,
    join_pb2,
    join_pb2_grpc,
)


@pytest.fixture(scope="module")
def manager(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ManagerProcess]:
    running = ManagerProcess(tmp_path_factory.mktemp("manager"), security="tls")
    try:
        yield running.start()
    finally:
        running.kill()


@pytest.fixture(scope="module")
def admin(manager: ManagerProcess) -> Iterator[Client]:
    with manager.client() as client:
        yield client


def forged(manager: ManagerProcess, folder: Path, node: str, life_s: float, *, by_ours: bool) -> Access:
    """A node's certificate that the manager did not give: by its own authority, or by another one."""
    ours = Authority.at(manager.home.authority, time.time())
    authority = ours if by_ours else Authority.at(folder, time.time())
    key_pem = new_key()
    made = authority.issue(request_for(key_pem), node, time.time(), life_s)
    return Access(ca_pem=ours.ca_pem, certificate_pem=made.certificate_pem, key_pem=key_pem)


def user(manager: ManagerProcess, text: str) -> Client:
    return Client(manager.address, access=access_of(user_token(text)))


def test_a_machine_joins_with_its_ticket_and_is_welcome(manager: ManagerProcess, admin: Client) -> None:
    access = joined(manager, ticket_for(admin, "n1"))
    assert isinstance(access, Access)
    answer = said_hello(manager, access, "n1")
    assert isinstance(answer, agent_pb2.ManagerMessage)
    assert answer.HasField("welcome")
    assert any(e.what == "node-enrolled" and e.node == "n1" for e in admin.events())


def test_a_lost_reply_does_not_lock_the_machine_out_but_a_replay_is_refused(
    manager: ManagerProcess, admin: Client
) -> None:
    ticket, key = ticket_for(admin, "n2"), new_key()
    assert isinstance(joined(manager, ticket, key_pem=key), Access)
    again = joined(manager, ticket, key_pem=key)
    assert isinstance(again, Access)
    assert isinstance(said_hello(manager, again, "n2"), agent_pb2.ManagerMessage)
    replay = joined(manager, ticket)
    assert isinstance(replay, Refusal)
    assert replay.code is grpc.StatusCode.PERMISSION_DENIED
    assert "used already, by another key" in replay.why
    eventually(lambda: refused_events(admin, "used already") == ["127.0.0.1"])


def test_other_tickets_are_refused_with_the_reason(manager: ManagerProcess, admin: Client) -> None:
    good = ticket_for(admin, "n3")
    short = ticket_for(admin, "n4", ttl_s=0.2)
    wait_past(time.time() + 0.2)
    revoked = ticket_for(admin, "n5")
    admin.revoke_token(revoked.id)
    for found, why in (
        (joined(manager, good, secret="x"), "unknown join ticket"),
        (joined(manager, good, token_id="x"), "unknown join ticket"),
        (joined(manager, good, node="n9"), "is for node n3, not for n9"),
        (joined(manager, short), "is expired"),
        (joined(manager, revoked), "is revoked"),
    ):
        assert isinstance(found, Refusal)
        assert found.code is grpc.StatusCode.PERMISSION_DENIED
        assert why in found.why
    assert isinstance(joined(manager, good), Access)  # none of it has used the ticket up


def test_no_node_speaks_in_the_name_of_another(manager: ManagerProcess, admin: Client) -> None:
    access = joined(manager, ticket_for(admin, "n6"))
    assert isinstance(access, Access)
    hello = said_hello(manager, access, "n7")
    chunk = agent_pb2.LogChunk(node="n7", job="j", generation=1, rank=0, data=b"x")
    for found in (hello, pushed_logs(manager, access, [chunk])):
        assert isinstance(found, Refusal)
        assert found.code is grpc.StatusCode.PERMISSION_DENIED
        assert "certificate is that of node n6" in found.why
    assert all(node.node != "n7" for node in admin.nodes())
    eventually(lambda: refused_events(admin, "certificate is that of node n6"))


def test_a_node_whose_certificate_is_revoked_is_out_until_it_has_a_new_ticket(
    manager: ManagerProcess, admin: Client
) -> None:
    access, unspent = joined(manager, ticket_for(admin, "n8")), ticket_for(admin, "n8")
    assert isinstance(access, Access)
    hello = agent_pb2.AgentMessage(hello=hello_of("n8"))
    stub: Any = agent_pb2_grpc.AgentLinkStub
    with open_channel(manager.address, access, ()) as channel:
        held_open: SimpleQueue[agent_pb2.AgentMessage | None] = SimpleQueue()
        held_open.put(hello)
        stream = stub(channel).Connect(iter(held_open.get, None), timeout=CALL_S)
        assert next(stream).HasField("welcome")
        admin.revoke_node("n8")
        with pytest.raises(grpc.RpcError) as ended:
            list(stream)
        held_open.put(None)
    assert refusal(ended.value).code is not grpc.StatusCode.DEADLINE_EXCEEDED
    answer = said_hello(manager, access, "n8")
    assert isinstance(answer, Refusal)
    assert "the certificate of node n8 is revoked" in answer.why
    with open_channel(manager.address, access, ()) as channel, pytest.raises(grpc.RpcError) as refused:
        stub(channel).Renew(agent_pb2.RenewRequest(csr_pem=request_for(new_key())), timeout=CALL_S)
    assert refusal(refused.value).code is grpc.StatusCode.UNAUTHENTICATED
    assert isinstance(joined(manager, unspent), Refusal)
    again = joined(manager, ticket_for(admin, "n8"))
    assert isinstance(again, Access)
    assert isinstance(said_hello(manager, again, "n8"), agent_pb2.ManagerMessage)
    assert any(e.what == "token-revoked" and "of node n8" in e.why for e in admin.events())


def test_a_certificate_of_another_authority_or_of_the_past_is_not_let_in(
    manager: ManagerProcess, admin: Client, tmp_path: Path
) -> None:
    foreign = forged(manager, tmp_path, "n1", 60.0, by_ours=False)
    expired = forged(manager, tmp_path, "n1", -60.0, by_ours=True)
    for access, why in ((foreign, "not one of this manager's authority"), (expired, "has expired")):
        found = said_hello(manager, access, "n1")
        assert isinstance(found, Refusal)
        assert found.code is grpc.StatusCode.UNAVAILABLE
        eventually(lambda why=why: refused_events(admin, why))


def test_an_agent_without_a_certificate_is_told_to_join(manager: ManagerProcess, admin: Client) -> None:
    found = said_hello(manager, Access(ca_pem=ticket_for(admin, "n8").ca), "n8")
    assert isinstance(found, Refusal)
    assert found.code is grpc.StatusCode.UNAUTHENTICATED
    assert "--join" in found.why


def test_plain_text_is_refused_with_the_reason(manager: ManagerProcess, admin: Client) -> None:
    with Client(manager.address) as plain, pytest.raises(AccessRefused, match="speaks TLS only"):
        plain.nodes()
    found = said_hello(manager, None, "n1")
    assert isinstance(found, Refusal)
    assert found.code is grpc.StatusCode.UNAUTHENTICATED
    with connected(manager) as sock:
        sock.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
        assert sock.recv(100).startswith(b"HTTP/1.1 400 ")
    eventually(lambda: refused_events(admin, "plain text"))


def test_a_port_scan_does_not_fill_the_event_list(manager: ManagerProcess, admin: Client) -> None:
    for _ in range(40):
        with connected(manager) as sock:
            sock.sendall(b"\x16\x03\x01\x00\x05hello")
            while sock.recv(1000):
                pass
    assert len([e for e in admin.events() if e.what == "refused"]) < 40


def test_the_other_side_of_the_listener_lets_nobody_in(manager: ManagerProcess, admin: Client) -> None:
    ports = inner_ports(manager)
    assert ports
    for port in ports:
        with (
            Client(f"127.0.0.1:{port}") as sneaking,
            pytest.raises(AccessRefused, match="the manager's own"),
        ):
            sneaking.nodes()
    assert admin.nodes() is not None


def test_a_user_may_do_what_the_token_says_until_it_is_revoked(
    manager: ManagerProcess, admin: Client
) -> None:
    text = admin.create_user_token("alice")
    (token,) = [t for t in admin.tokens() if t.name == "alice"]
    assert (token.kind, token.state, token.created_by) == ("USER", "valid", "admin")
    with user(manager, text) as alice:
        job = alice.submit(submission(manager.upload(), "r1"))
        stream = alice.events(follow=True)
        next(stream)
        assert any(e.what == "submitted" and e.who == "alice" for e in alice.events(job))
        assert alice.job(job).user == "alice"  # whatever name the request carried
        admin.revoke_token(token.id)
        with pytest.raises(AccessRefused, match="of alice is revoked"):
            list(stream)
        with pytest.raises(AccessRefused, match="of alice is revoked"):
            alice.nodes()
    admin.cancel(job, user="whoever")
    assert any(e.what == "cancel-requested" and e.who == "admin" for e in admin.events(job))


def test_a_stream_ends_with_its_token(manager: ManagerProcess, admin: Client) -> None:
    text = admin.create_user_token("bob", ttl_s=1.5)
    with user(manager, text) as bob, pytest.raises(AccessRefused, match="of bob is expired"):
        list(bob.events(follow=True))


def test_users_without_a_good_token_are_refused(manager: ManagerProcess, admin: Client) -> None:
    token = user_token(admin.create_user_token("carol"))
    for bearer, why in (
        ("", "users need a token"),
        (f"{token.id}.wrong", "unknown user token"),
        (f"nobody.{token.secret}", "unknown user token"),
        (token.id, "users need a token"),
    ):
        access = Access(ca_pem=token.ca, bearer=bearer)
        with Client(manager.address, access=access) as client, pytest.raises(AccessRefused, match=why):
            client.nodes()
    eventually(lambda: refused_events(admin, "unknown user token"))


def test_nothing_large_is_taken_from_a_stranger_and_all_of_it_from_a_user(
    manager: ManagerProcess, admin: Client
) -> None:
    large = client_pb2.SubmitRequest(model_json=b"x" * (20 << 20))
    token = user_token(manager.home.admin_token.read_text())
    stub: Any = client_pb2_grpc.ClientStub
    for access, code in (
        (Access(ca_pem=token.ca), grpc.StatusCode.UNAUTHENTICATED),
        (access_of(token), grpc.StatusCode.INVALID_ARGUMENT),  # it was read, and is no submission
    ):
        with open_channel(manager.address, access, ()) as channel, pytest.raises(grpc.RpcError) as refused:
            stub(channel).DryRun(large, timeout=CALL_S)
        assert refusal(refused.value).code is code
    join: Any = join_pb2_grpc.JoinStub
    with open_channel(manager.address, Access(ca_pem=token.ca), ()) as channel:
        request = join_pb2.JoinRequest(csr_pem=b"x" * (20 << 20))
        with pytest.raises(grpc.RpcError) as refused:
            join(channel).Join(request, timeout=2.0)
    assert refusal(refused.value).code is grpc.StatusCode.DEADLINE_EXCEEDED  # nobody waited for all of it


def test_a_join_ticket_is_no_user_token(manager: ManagerProcess, admin: Client) -> None:
    ticket = ticket_for(admin, "n10")
    access = Access(ca_pem=ticket.ca, bearer=f"{ticket.id}.{ticket.secret}")
    with Client(manager.address, access=access) as client, pytest.raises(AccessRefused, match="unknown"):
        client.nodes()


def test_no_other_account_may_look_into_the_managers_home(manager: ManagerProcess) -> None:
    assert manager.home.manager.stat().st_mode & 0o777 == 0o700


def test_a_client_talks_to_no_impostor(manager: ManagerProcess, tmp_path: Path) -> None:
    token = user_token(manager.home.admin_token.read_text())
    other = Access(ca_pem=Authority.at(tmp_path, time.time()).ca_pem, bearer=token.bearer)
    with (
        Client(manager.address, access=other) as client,
        pytest.raises(AccessRefused, match="is not the manager"),
    ):
        client.nodes()


def test_mistakes_in_names_and_ids_are_told(admin: Client) -> None:
    with pytest.raises(InvalidInput, match="without a slash"):
        admin.create_ticket("a/b")
    with pytest.raises(NotFound, match="varuna token ls"):
        admin.revoke_token("nope")


def inner_ports(manager: ManagerProcess) -> list[int]:
    """Ports on which the manager listens besides its own."""
    own = int(manager.address.rpartition(":")[2])
    return [port for _, port in listening(manager.pid) if port != own]
