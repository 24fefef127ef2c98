"""What a source of notices can say, and the seam to the sources."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Notice:
    """The node vanishes in `seconds_left`; a later one takes the place of an earlier one."""

    seconds_left: float  # never negative
    detail: str = ""
    id: str = ""  # of the source, for `acknowledge`
    is_urgent: bool = False  # the time is a guess: the work moves at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Cancelled:
    """The node stays after all."""

    detail: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hint:
    """The node is at risk; nothing is moved for it."""

    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HealthChanged:
    """Whether the source answers: its name, "starting", or "unavailable, because ..."."""

    state: str


Change = Notice | Cancelled | Hint | HealthChanged


class NoticeSource(Protocol):
    """Tells of notices; the local pool has a file, clouds have metadata services."""

    name: str
    ends_node: bool  # the source only announces; true where the agent has to play the cloud's part too

    def changes(self) -> AsyncGenerator[Change, None]:
        """Yield each change, for ever; whatever the source meets becomes a HealthChanged. Close it."""
        ...

    async def acknowledge(self, notice: Notice) -> None:
        """The node is empty: the cloud need not wait until the deadline. Returns once that is said."""
        ...
