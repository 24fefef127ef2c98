"""Tickets and tokens as records, and who may do what with them; pure but for hashing."""

import hashlib
import hmac
from dataclasses import dataclass, replace
from enum import StrEnum

from varuna_runtime.spec.errors import AccessRefused

_NO_HASH = hashlib.sha256(b"").hexdigest()  # compared with when there is no such token: the same time passes


class TokenKind(StrEnum):
    """What it opens."""

    JOIN = "join"  # one machine may join as one node, once
    USER = "user"  # the Client service


class TokenState(StrEnum):
    """Whether it still opens anything."""

    VALID = "valid"
    USED = "used"
    EXPIRED = "expired"
    REVOKED = "revoked"


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """One ticket or token; the secret itself is kept nowhere. Times are Unix seconds."""

    id: str
    kind: TokenKind
    name: str  # node or user
    secret_sha256: str
    created_at_s: float
    expires_at_s: float
    created_by: str
    used_at_s: float | None = None
    used_key: str = ""  # SHA-256 of the public key that a ticket was spent on
    revoked_at_s: float | None = None

    def state(self, now_s: float) -> TokenState:
        """Return its state; one that was used or revoked stays so."""
        if self.revoked_at_s is not None:
            return TokenState.REVOKED
        if self.used_at_s is not None:
            return TokenState.USED
        return TokenState.EXPIRED if now_s >= self.expires_at_s else TokenState.VALID


def hashed(secret: str) -> str:
    """Return what is kept of a secret. It has 256 random bits, so a slow hash would add nothing."""
    return hashlib.sha256(secret.encode()).hexdigest()


def admitted_user(token: Token | None, secret: str, now_s: float) -> Token:
    """Return the token if it opens the Client service now, else raise AccessRefused with the reason."""
    found = _matching(token, secret, TokenKind.USER)
    if (state := found.state(now_s)) is not TokenState.VALID:
        raise AccessRefused(
            f"user token {found.id} of {found.name} is {state}; "
            "ask the operator for a new one: varuna token create --user NAME"
        )
    return found


def spent(token: Token | None, secret: str, *, node: str, key_sha256: str, now_s: float) -> Token:
    """Return the ticket as spent on `key_sha256`, else raise AccessRefused with the reason.

    While it has not expired it may be spent again on the very same key: the first reply may have been lost.
    """
    found = _matching(token, secret, TokenKind.JOIN)
    if found.name != node:
        raise AccessRefused(f"join ticket {found.id} is for node {found.name}, not for {node[:128]}")
    renewed = "make a new one: varuna token create --node " + found.name
    if found.revoked_at_s is not None:
        raise AccessRefused(f"join ticket {found.id} of node {node} is revoked; {renewed}")
    if now_s >= found.expires_at_s:
        raise AccessRefused(f"join ticket {found.id} of node {node} is expired; {renewed}")
    if found.used_at_s is None:
        return replace(found, used_at_s=now_s, used_key=key_sha256)
    if not hmac.compare_digest(found.used_key, key_sha256):
        raise AccessRefused(
            f"join ticket {found.id} of node {node} was used already, by another key; {renewed}"
        )
    return found


def _matching(token: Token | None, secret: str, kind: TokenKind) -> Token:
    is_secret = hmac.compare_digest(_NO_HASH if token is None else token.secret_sha256, hashed(secret))
    if token is None or not is_secret or token.kind is not kind:
        what = "join ticket" if kind is TokenKind.JOIN else "user token"
        raise AccessRefused(f"unknown {what}: it was made by another manager, removed, or changed on its way")
    return token
