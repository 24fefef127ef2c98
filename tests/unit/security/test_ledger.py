"""Who may do what with a ticket or token, by virtual time."""

from dataclasses import replace

import pytest

from varuna_manager.security.ledger import Token, TokenKind, TokenState, admitted_user, hashed, spent
from varuna_runtime.spec.errors import AccessRefused

NOW_S = 1000.0
TICKET = Token(
    id="t1",
    kind=TokenKind.JOIN,
    name="n1",
    secret_sha256=hashed("secret"),
    created_at_s=NOW_S,
    expires_at_s=NOW_S + 900,
    created_by="admin",
)
USER = replace(TICKET, id="u1", kind=TokenKind.USER, name="alice")


def spend(
    token: Token | None, secret: str = "secret", node: str = "n1", key: str = "k", at_s: float = NOW_S
) -> Token:
    return spent(token, secret, node=node, key_sha256=key, now_s=at_s)


def test_a_ticket_is_good_once_for_its_node() -> None:
    used = spend(TICKET)
    assert used.state(NOW_S) is TokenState.USED
    with pytest.raises(AccessRefused, match="used already, by another key"):
        spend(used, key="other")


def test_a_ticket_may_be_spent_again_on_the_same_key_while_it_lasts_since_a_reply_may_be_lost() -> None:
    used = spend(TICKET)
    assert spend(used, at_s=NOW_S + 899) == used
    with pytest.raises(AccessRefused, match="expired"):
        spend(used, at_s=NOW_S + 900)


@pytest.mark.parametrize(
    ("token", "secret", "node", "why"),
    [
        (None, "secret", "n1", "unknown join ticket"),
        (None, "", "n1", "unknown join ticket"),
        (TICKET, "wrong", "n1", "unknown join ticket"),
        (TICKET, "", "n1", "unknown join ticket"),
        (USER, "secret", "alice", "unknown join ticket"),
        (TICKET, "secret", "n2", "is for node n1, not for n2"),
        (replace(TICKET, revoked_at_s=NOW_S), "secret", "n1", "revoked"),
        (replace(TICKET, expires_at_s=NOW_S), "secret", "n1", "expired"),
    ],
)
def test_any_other_ticket_is_refused_with_the_reason(token: Token, secret: str, node: str, why: str) -> None:
    with pytest.raises(AccessRefused, match=why):
        spend(token, secret, node)


def test_a_user_token_is_good_until_it_expires_or_is_revoked() -> None:
    assert admitted_user(USER, "secret", NOW_S + 899) == USER
    with pytest.raises(AccessRefused, match="of alice is expired"):
        admitted_user(USER, "secret", NOW_S + 900)
    with pytest.raises(AccessRefused, match="of alice is revoked"):
        admitted_user(replace(USER, revoked_at_s=NOW_S), "secret", NOW_S)


@pytest.mark.parametrize(("token", "secret"), [(None, "secret"), (USER, "Secret"), (TICKET, "secret")])
def test_whether_a_token_exists_cannot_be_told_from_a_refusal(token: Token | None, secret: str) -> None:
    with pytest.raises(AccessRefused, match=r"^unknown user token"):
        admitted_user(token, secret, NOW_S)
