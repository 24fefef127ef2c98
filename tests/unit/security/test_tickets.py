"""Tickets and tokens as text: what is damaged is refused without a word of it being repeated."""

import base64
import json
from dataclasses import asdict

import pytest

from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.tickets import (
    JoinTicket,
    UserToken,
    join_ticket,
    secret_name,
    store_key,
    user_token,
)

TICKET = JoinTicket(
    manager="10.0.0.5:7800", ca="-----BEGIN\n...", id="0a1b", secret="s3cret-value", node="vm-3"
)
TOKEN = UserToken(manager="10.0.0.5:7800", ca="-----BEGIN\n...", id="0a1b", secret="s3cret-value")


def packed(**changes: object) -> str:
    body = json.dumps(asdict(TICKET) | changes).encode()
    return "varuna-join-v1." + base64.urlsafe_b64encode(body).decode().rstrip("=")


def test_what_was_written_is_read() -> None:
    assert join_ticket(f"  {TICKET.text()}\n") == TICKET
    assert user_token(TOKEN.text()) == TOKEN
    assert "\n" not in TICKET.text()


def test_a_secret_is_in_no_representation() -> None:
    assert "s3cret" not in repr(TICKET) + repr(TOKEN)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "s3cret-value",
        TOKEN.text(),
        TICKET.text()[:-9],
        TICKET.text() + "\x00",
        "varuna-join-v1.!!!!",
        "varuna-join-v1." + base64.urlsafe_b64encode(b"\xff\xfe").decode(),
        "varuna-join-v1." + base64.urlsafe_b64encode(b"[1]").decode(),
        "varuna-join-v1." + "A" * 20_000,
        packed(node=""),
        packed(node=3),
        packed(secret=None),
        packed(secret="two\nlines"),
        packed(manager="10.0.0.5:7800\x1b[2J"),
        packed(id="\ud800"),
        "varuna-join-v1." + base64.urlsafe_b64encode(b"[" * 11_000).decode(),
    ],
)
def test_other_text_is_refused_and_not_repeated(text: str) -> None:
    with pytest.raises(InvalidInput, match=r"^join ticket: .*varuna token create|damaged") as refused:
        join_ticket(text)
    assert "s3cret" not in str(refused.value)
    assert refused.value.__cause__ is None


def test_what_a_later_version_adds_does_no_harm() -> None:
    assert join_ticket(packed(zone="b")) == TICKET


def test_each_node_has_a_name_of_its_own_in_a_vault() -> None:
    nodes = ["i-0abc", "pool_0", "pool-0", "pool.0", "x" * 300, "x" * 301, "ä"]
    names = {secret_name(node) for node in nodes}
    assert len(names) == len(nodes)
    assert all(name.replace("-", "").isalnum() and name.isascii() and len(name) <= 127 for name in names)
    assert store_key("pool_0") == f"join/{secret_name('pool_0')}"
