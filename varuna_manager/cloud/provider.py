"""The seam to whoever lends us nodes."""

from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from varuna_runtime.spec.errors import VarunaError


class ProviderError(VarunaError):
    """The provider could not answer; it says nothing about the nodes."""


class NodeState(StrEnum):
    """What the provider knows of a node."""

    RUNNING = "running"
    GONE = "gone"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderNode:
    """A node as its provider sees it; `reason` says why it is gone."""

    node: str
    state: NodeState
    reason: str = ""


class Provider(Protocol):
    """Calls may block and may raise ProviderError; all are idempotent except `add`."""

    def list_nodes(self) -> tuple[ProviderNode, ...]:
        """Return every node this provider lends, sorted by id; a node it does not list is unknown to it."""
        ...

    def add(self, count: int) -> tuple[str, ...]:
        """Start `count` new nodes and return their ids."""
        ...

    def terminate(self, node: str) -> None:
        """End a node at once; one that is gone already is fine, an unknown one is InvalidInput."""
        ...

    def notice(self, node: str, in_s: float) -> None:
        """Announce that the node will vanish in `in_s` seconds."""
        ...

    def withdraw_notice(self, node: str) -> None:
        """Take the announcement back; without one nothing happens."""
        ...
