"""Join tickets and user tokens as one line of text that can be carried; nothing is drawn or judged here.

Both name the manager and its certificate authority, so that whoever holds one talks to no impostor.
"""

import base64
import binascii
import hashlib
import json
import re
from dataclasses import asdict, dataclass, field, fields
from typing import TypeVar

from varuna_runtime.spec.errors import InvalidInput

_JOIN = "varuna-join-v1."
_USER = "varuna-user-v1."
_MAX_CHARS = 16 << 10
_HANDOVER = "varuna-join-"

T = TypeVar("T", "JoinTicket", "UserToken")


@dataclass(frozen=True, slots=True, kw_only=True)
class JoinTicket:
    """Lets one machine join as `node`, once."""

    manager: str  # HOST:PORT
    ca: str  # PEM
    id: str
    secret: str = field(repr=False)
    node: str

    def text(self) -> str:
        """Return the ticket as it is handed over."""
        return _JOIN + _packed(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class UserToken:
    """Lets a person or a program use the Client service."""

    manager: str  # HOST:PORT
    ca: str  # PEM
    id: str
    secret: str = field(repr=False)

    def text(self) -> str:
        """Return the token as it is handed over."""
        return _USER + _packed(self)

    @property
    def bearer(self) -> str:
        """What goes into the `authorization` header after `Bearer`."""
        return f"{self.id}.{self.secret}"


def join_ticket(text: str) -> JoinTicket:
    """Return the ticket in `text`; InvalidInput never repeats any of it."""
    return _unpacked(JoinTicket, text, _JOIN, "join ticket", "varuna token create --node NAME")


def user_token(text: str) -> UserToken:
    """Return the token in `text`; InvalidInput never repeats any of it."""
    return _unpacked(UserToken, text, _USER, "user token", "varuna token create --user NAME")


def secret_name(node: str) -> str:
    """Return the name of a node's ticket in a key vault: letters, digits and dashes, one for each node."""
    plain = re.sub(r"[^A-Za-z0-9-]", "-", node)[:80]
    return f"{_HANDOVER}{plain}-{hashlib.sha256(node.encode()).hexdigest()[:8]}"


def store_key(node: str) -> str:
    """Return the key of a node's ticket below the prefix of an object store."""
    return f"join/{secret_name(node)}"


def _packed(record: "JoinTicket | UserToken") -> str:
    body = json.dumps(asdict(record), separators=(",", ":")).encode()
    return base64.urlsafe_b64encode(body).decode().rstrip("=")


def _unpacked(kind: type[T], text: str, prefix: str, what: str, command: str) -> T:
    text = text.strip()
    if not text.startswith(prefix) or len(text) > _MAX_CHARS:
        raise InvalidInput(f"{what}: seen other text, wanted {prefix}..., as `{command}` prints it")
    try:
        body = text.removeprefix(prefix)
        found = json.loads(base64.b64decode(body + "=" * (-len(body) % 4), altchars=b"-_", validate=True))
    except (binascii.Error, ValueError, RecursionError):
        raise InvalidInput(f"{what}: it is damaged, perhaps cut short; copy the whole line again") from None
    names = [f.name for f in fields(kind)]
    if not isinstance(found, dict) or not all(_is_text(found.get(n), n) for n in names):
        raise InvalidInput(f"{what}: it lacks one of {', '.join(names)}; make a new one with `{command}`")
    return kind(**{name: found[name] for name in names})


def _is_text(value: object, name: str) -> bool:
    """Return whether it is text that may go into a header and a message; only a PEM has several lines."""
    if not isinstance(value, str) or not value:
        return False
    return (value.replace("\n", "") if name == "ca" else value).isprintable()
