"""What a pass of sizing answers: writes to a provider, and events for the core."""

from dataclasses import dataclass

from varuna_manager.cloud.provider import PoolReading, Trouble
from varuna_manager.core.events import Durable


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """A provider call that did not succeed; a failed read says nothing about machines."""

    trouble: Trouble
    message: str
    retry_after_s: float | None = None


Answer = PoolReading | Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class Grow:
    """Raise the target of the pool to `desired`."""

    pool: str
    desired: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """End these machines; the core has them all in `State.ending`."""

    pool: str
    nodes: tuple[str, ...]
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """Stop asking for what did not come."""

    pool: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LetGo:
    """Tell the provider that a machine that is leaving may end."""

    pool: str
    node: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Post:
    """Give this event to the core."""

    event: Durable


Write = Grow | Release | GiveUp | LetGo
Decision = Write | Post
