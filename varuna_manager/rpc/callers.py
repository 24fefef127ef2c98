"""Who makes the call that is being served, as far as TLS or a token has proved it."""

from contextvars import ContextVar
from dataclasses import dataclass

from varuna_runtime.spec.errors import AccessRefused


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """One of the three is not empty, but for a peer that may only join."""

    address: str
    node: str = ""
    user: str = ""


calling: ContextVar[Caller | None] = ContextVar("calling", default=None)
"""None: the manager serves plain text on loopback, where everyone is believed."""


def refuse_other_node(node: str) -> None:
    """Raise AccessRefused when a node speaks in another's name."""
    caller = calling.get()
    if caller is not None and caller.node != node:
        raise AccessRefused(
            f"the certificate is that of node {caller.node}, which may not speak for {node[:128]}"
        )


def user_or(claimed: str) -> str:
    """Return the user whose token it is; without tokens the one that the request claims."""
    caller = calling.get()
    return claimed if caller is None else caller.user
