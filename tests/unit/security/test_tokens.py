"""The record of tickets and tokens outlives the manager, and holds no secret."""

import asyncio
from pathlib import Path

import pytest

from varuna_manager.persistence import Database
from varuna_manager.security.authority import Authority
from varuna_manager.security.desk import Desk
from varuna_manager.security.ledger import TokenKind, TokenState
from varuna_manager.security.tokens import Tokens
from varuna_runtime.agent.credentials import new_key, request_for
from varuna_runtime.spec.errors import AccessRefused, InvalidInput, NotFound
from varuna_runtime.spec.tickets import join_ticket, user_token

DAY_S = 86400.0


class Office:
    """A desk with a clock that the test turns."""

    def __init__(self, folder: Path) -> None:
        self.now_s = 1_800_000_000.0
        self.folder = folder
        self.extended: list[tuple[str, float]] = []
        self.ended: list[str] = []
        self.database = Database(folder / "journal.sqlite")
        self.tokens = Tokens(self.database, lambda: self.now_s)
        self.desk = Desk(
            address="10.0.0.5:7800",
            authority=Authority.at(folder, self.now_s),
            tokens=self.tokens,
            certificate_life_s=60.0,
            extend=lambda node, until_s: self.extended.append((node, until_s)),
            end=self.ended.append,
        )

    def reopened(self) -> Tokens:
        return Tokens(self.database, lambda: self.now_s)


@pytest.fixture
def office(tmp_path: Path) -> Office:
    return Office(tmp_path)


def test_what_is_on_disk_is_the_same_after_a_restart_and_no_secret(office: Office) -> None:
    async def scenario() -> None:
        _, ticket_text = await office.desk.ticket("n1", created_by="admin")
        token, token_text = await office.desk.user_token("alice", created_by="admin")
        ticket = join_ticket(ticket_text)
        await office.desk.joined(ticket.id, ticket.secret, "n1", request_for(new_key()))
        await office.tokens.revoke(token.id)
        again = office.reopened()
        assert again.all() == office.tokens.all()
        assert {again.state(t) for t in again.all()} == {TokenState.USED, TokenState.REVOKED}
        office.database.close()
        kept = b"".join(path.read_bytes() for path in office.folder.glob("journal.sqlite*"))
        assert token.id.encode() in kept
        for secret in (ticket.secret, user_token(token_text).secret):
            assert secret.encode() not in kept

    asyncio.run(scenario())


def test_of_many_racing_for_one_ticket_one_wins(office: Office) -> None:
    async def scenario() -> None:
        _, text = await office.desk.ticket("n1", created_by="admin")
        ticket = join_ticket(text)
        tries = [office.desk.joined(ticket.id, ticket.secret, "n1", request_for(new_key())) for _ in range(8)]
        results = await asyncio.gather(*tries, return_exceptions=True)
        assert sum(isinstance(found, AccessRefused) for found in results) == 7

    asyncio.run(scenario())


def test_a_waiting_stream_hears_at_once_that_its_token_is_revoked(office: Office) -> None:
    async def scenario() -> None:
        token, _ = await office.desk.user_token("alice", created_by="admin")
        waiting = asyncio.ensure_future(office.tokens.until_over(token.id))
        await asyncio.sleep(0)
        await office.tokens.revoke(token.id)
        assert await waiting is TokenState.REVOKED

    asyncio.run(scenario())


def test_revoking_twice_is_fine_and_an_unknown_one_is_named(office: Office) -> None:
    async def scenario() -> None:
        token, _ = await office.desk.user_token("alice", created_by="admin")
        once = await office.tokens.revoke(token.id)
        office.now_s += 5
        assert await office.tokens.revoke(token.id) == once
        with pytest.raises(NotFound, match="varuna token ls"):
            await office.tokens.revoke("nope")

    asyncio.run(scenario())


def test_what_was_over_long_ago_is_forgotten(office: Office) -> None:
    async def scenario() -> None:
        old, _ = await office.desk.ticket("n1", created_by="admin")
        office.now_s += 8 * DAY_S
        new, _ = await office.desk.ticket("n2", created_by="admin")
        assert [t.id for t in office.tokens.all()] == [new.id] != [old.id]
        assert office.reopened().all() == office.tokens.all()

    asyncio.run(scenario())


def test_the_admin_token_is_kept_while_it_is_good(office: Office) -> None:
    path = office.folder / "admin.token"

    async def scenario() -> None:
        await office.desk.keep_admin_token(path)
        first = path.read_text()
        await office.desk.keep_admin_token(path)
        assert path.read_text() == first
        assert path.stat().st_mode & 0o777 == 0o600
        await office.tokens.revoke(user_token(first).id)
        await office.desk.keep_admin_token(path)
        second = user_token(path.read_text())
        assert office.tokens.admitted_user(second.id, second.secret).name == "admin"

    asyncio.run(scenario())


def test_only_a_renewal_lets_connections_last_longer(office: Office) -> None:
    async def scenario() -> None:
        _, text = await office.desk.ticket("n1", created_by="admin")
        ticket = join_ticket(text)
        await office.desk.joined(ticket.id, ticket.secret, "n1", request_for(new_key()))
        assert office.extended == []
        issued = office.desk.renewed("n1", request_for(new_key()))
        assert office.extended == [("n1", issued.expires_at_s)]

    asyncio.run(scenario())


@pytest.mark.parametrize("name", ["", " ", "a/b", "a\nb", "x" * 201])
def test_a_name_that_would_confuse_is_refused(office: Office, name: str) -> None:
    with pytest.raises(InvalidInput, match="wanted a name without a slash"):
        asyncio.run(office.desk.user_token(name, created_by="admin"))


@pytest.mark.parametrize("ttl_s", [-1.0, 1e12, float("nan"), float("inf")])
def test_a_life_that_makes_no_sense_is_refused(office: Office, ttl_s: float) -> None:
    with pytest.raises(InvalidInput, match="ttl"):
        asyncio.run(office.desk.ticket("n", created_by="admin", ttl_s=ttl_s))


def test_a_damaged_request_does_not_use_the_ticket_up(office: Office) -> None:
    async def scenario() -> None:
        token, text = await office.desk.ticket("n1", created_by="admin")
        ticket = join_ticket(text)
        with pytest.raises(InvalidInput):
            await office.desk.joined(ticket.id, ticket.secret, "n1", b"junk")
        (found,) = office.tokens.all()
        assert found == token
        assert found.kind is TokenKind.JOIN

    asyncio.run(scenario())


def test_a_barred_node_keeps_nothing_it_has_and_a_restart_forgets_none_of_it(office: Office) -> None:
    async def scenario() -> None:
        _, text = await office.desk.ticket("n1", created_by="admin")
        await office.tokens.bar("n1", office.now_s)
        assert [t.state(office.now_s) for t in office.tokens.all()] == [TokenState.REVOKED]
        with pytest.raises(AccessRefused, match="is revoked"):
            await office.desk.joined(
                join_ticket(text).id, join_ticket(text).secret, "n1", request_for(new_key())
            )
        for tokens in (office.tokens, office.reopened()):
            assert tokens.is_barred("n1", office.now_s)
            assert not tokens.is_barred("n1", office.now_s + 1)
            assert not tokens.is_barred("n2", office.now_s - DAY_S)

    asyncio.run(scenario())
