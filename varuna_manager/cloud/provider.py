"""The seam to whoever lends us nodes: one provider is one pool, and a write always follows a fresh read."""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from varuna_runtime.spec.errors import VarunaError


class Trouble(StrEnum):
    """Kinds of failure of a provider call; what to do about each differs."""

    RETRY = "retry"  # no answer, a reset, a 5xx, a conflict with a write under way: ask again later
    THROTTLED = "throttled"  # too many calls: not before `retry_after_s`
    CAPACITY = "capacity"  # the market is empty just now
    QUOTA = "quota"  # a person must raise a limit
    AUTH = "auth"  # a person must fix credentials or permissions
    CONFIG = "config"  # a person must fix the pool's settings, or what they name does not exist
    UNKNOWN = "unknown"


class ProviderError(VarunaError):
    """The provider could not answer or refused; a failed read says nothing about the nodes."""

    def __init__(
        self, message: str, *, trouble: Trouble = Trouble.UNKNOWN, retry_after_s: float | None = None
    ) -> None:
        super().__init__(message)
        self.trouble = trouble
        self.retry_after_s = retry_after_s


class InstancePhase(StrEnum):
    """What the provider knows of a machine. Only GONE never comes back."""

    STARTING = "starting"  # asked for or booting
    RUNNING = "running"
    STOPPED = "stopped"  # exists and may cost money, but runs nothing (deallocated, standby, stopped)
    LEAVING = "leaving"  # the provider is ending it, or waits for our word before it does
    GONE = "gone"


class Market(StrEnum):
    """How a machine is paid for."""

    SPOT = "spot"
    ON_DEMAND = "on-demand"


@dataclass(frozen=True, slots=True, kw_only=True)
class Instance:
    """A machine as its provider sees it. `node` is the name under which its agent joins."""

    node: str
    phase: InstancePhase
    reason: str = ""  # why it is STOPPED, LEAVING or GONE, in the provider's words
    since_s: float | None = None  # Unix time of its launch; None: the provider does not say
    leaves_at_s: float | None = None
    """Unix time at which a LEAVING one ends without `let_go`, or at which the provider said another will."""
    zone: str = ""
    kind: str = ""  # instance type, VM size
    market: Market | None = None
    is_stray: bool = False  # carries our tag but belongs to no group: nothing else will ever end it


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolReading:
    """One fresh and complete answer of a provider; half an answer is a ProviderError."""

    instances: tuple[Instance, ...]  # by node; one that was listed before and is missing now is gone
    desired: int  # the provider's own target; it replaces by itself what falls below it
    least: int  # bounds the provider itself puts on `desired`
    most: int
    price: float | None = None  # dollars per hour of one more node; None: unknown
    shortage: str = ""  # why `desired` is not reached, in the provider's words
    shortage_trouble: Trouble | None = None
    warnings: tuple[str, ...] = ()  # settings of the group that a person should change
    is_writing: bool = False  # an earlier write of ours is under way: no other may start


class Provider(Protocol):
    """Calls block and may raise ProviderError. Every write is absolute or names nodes, so repeating is safe.

    A write takes the reading it was decided on and refuses (Trouble.RETRY) when the provider can tell that
    the world has moved on. `now_s` is Unix time.
    """

    def read(self, now_s: float) -> PoolReading:
        """Return everything there is to know, freshly asked; a constant number of calls, pages aside."""
        ...

    def grow(self, desired: int, seen: PoolReading) -> None:
        """Raise the target to `desired`; InvalidInput if that is not above `seen.desired`."""
        ...

    def release(self, nodes: Sequence[str], seen: PoolReading) -> None:
        """End exactly these machines and lower the target by as many: nothing is launched in their place.

        Only what the provider keeps anyway, `least`, is replaced. Ones that are gone or leaving already are
        fine; one this pool never had is InvalidInput.
        """
        ...

    def give_up(self, seen: PoolReading) -> None:
        """Stop asking for what did not come: lower the target to the machines that exist.

        Does nothing where that could end a living machine.
        """
        ...

    def let_go(self, node: str, seen: PoolReading) -> None:
        """Tell the provider that a LEAVING machine may end now; else it waits until `leaves_at_s`."""
        ...
