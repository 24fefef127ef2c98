"""Makes tickets and tokens, and turns tickets into certificates."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from varuna_manager import files
from varuna_manager.clock import wall_s
from varuna_manager.secrecy import new_token_id, new_token_secret
from varuna_manager.security.authority import Authority, Issued, key_sha256, requested_key
from varuna_manager.security.ledger import Token, TokenKind, TokenState
from varuna_manager.security.tokens import Tokens
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.tickets import JoinTicket, UserToken, user_token

TICKET_TTL_S = 15 * 60.0
USER_TTL_S = 90 * 86400.0
_ADMIN_TTL_S = 10 * 365 * 86400.0
_MAX_TTL_S = 20 * 365 * 86400.0
_MAX_NAME = 200
_NEXT_S = 1.0  # certificates tell whole seconds: the next one of a barred node must be of a later one
ADMIN = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Desk:
    """What a manager with TLS needs to let others in."""

    address: str  # HOST:PORT that others dial
    authority: Authority
    tokens: Tokens
    certificate_life_s: float
    extend: Callable[[str, float], None]
    """Told (node, Unix time) when a node has renewed: its connections are good until then."""
    end: Callable[[str], None]
    """Told the node whose connections are to end."""

    async def ticket(self, node: str, *, created_by: str, ttl_s: float = 0.0) -> tuple[Token, str]:
        """Return a new ticket for one machine and its text, which is kept nowhere. 0: the default life."""
        return await self._made(TokenKind.JOIN, node, created_by, ttl_s or TICKET_TTL_S)

    async def user_token(self, user: str, *, created_by: str, ttl_s: float = 0.0) -> tuple[Token, str]:
        """Return a new token for a user and its text, which is kept nowhere. 0: the default life."""
        return await self._made(TokenKind.USER, user, created_by, ttl_s or USER_TTL_S)

    async def joined(self, id: str, secret: str, node: str, csr_pem: bytes) -> Issued:
        """Spend a ticket and return the certificate of its node; AccessRefused, InvalidInput."""
        key = key_sha256(requested_key(csr_pem))
        await self.tokens.spend(id, secret, node=node, key_sha256=key)
        return self._issued(node, csr_pem)

    def renewed(self, node: str, csr_pem: bytes) -> Issued:
        """Return a fresh certificate of a node whose present one secures the connection; InvalidInput."""
        issued = self._issued(node, csr_pem)
        self.extend(node, issued.expires_at_s)
        return issued

    async def bar(self, node: str) -> None:
        """Make every ticket and certificate that a node has useless, and end its connections."""
        self._checked("node", node)
        await self.tokens.bar(node, wall_s())
        self.end(node)
        await asyncio.sleep(_NEXT_S)

    def _issued(self, node: str, csr_pem: bytes) -> Issued:
        return self.authority.issue(csr_pem, node, wall_s(), self.certificate_life_s)

    async def keep_admin_token(self, path: Path) -> None:
        """Have a valid token in `path`, for the command line on the manager's own machine."""
        if not await asyncio.to_thread(self._is_good, path):
            _, text = await self._made(TokenKind.USER, ADMIN, "manager", _ADMIN_TTL_S)
            await asyncio.to_thread(files.replace, path, text + "\n")

    def _is_good(self, path: Path) -> bool:
        try:
            token = user_token(path.read_text())
        except (FileNotFoundError, InvalidInput):
            return False
        known = next((t for t in self.tokens.all() if t.id == token.id), None)
        is_valid = known is not None and self.tokens.state(known) is TokenState.VALID
        return is_valid and (token.ca, token.manager) == (self.authority.ca_pem, self.address)

    def _checked(self, what: str, name: str) -> None:
        if not name.strip() or "/" in name or len(name) > _MAX_NAME or not name.isprintable():
            raise InvalidInput(
                f"{what} {name[:80]!r}: wanted a name without a slash of at most {_MAX_NAME} characters"
            )

    async def _made(self, kind: TokenKind, name: str, created_by: str, ttl_s: float) -> tuple[Token, str]:
        self._checked("node" if kind is TokenKind.JOIN else "user", name)
        if not 0 < ttl_s <= _MAX_TTL_S:
            raise InvalidInput(f"ttl: seen {ttl_s:g} s, wanted more than 0 and at most 20 years")
        id, secret = new_token_id(), new_token_secret()
        token = await self.tokens.create(
            kind, id=id, secret=secret, name=name, ttl_s=ttl_s, created_by=created_by
        )
        if kind is TokenKind.JOIN:
            made: JoinTicket | UserToken = JoinTicket(
                manager=self.address, ca=self.authority.ca_pem, id=id, secret=secret, node=name
            )
        else:
            made = UserToken(manager=self.address, ca=self.authority.ca_pem, id=id, secret=secret)
        return token, made.text()
