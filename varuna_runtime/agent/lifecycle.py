"""States of launchers and ranks on one node, and which may follow which."""

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TypeVar

from varuna_runtime.agent.records import Endpoint, LauncherOrder, RankKey, StartOrder


class LauncherState(StrEnum):
    """Opening: bundle, setup command, imports. Closing: told to end, not gone yet."""

    OPENING = "opening"
    READY = "ready"
    CLOSING = "closing"


class RankState(StrEnum):
    """Ending: its last report was made, or it was told to end; its process may still exist."""

    WAITING = "waiting"  # no process: an older generation or the launcher is in the way
    FORKING = "forking"
    PREPARING = "preparing"
    PREPARED = "prepared"
    ACTIVATING = "activating"
    READY = "ready"
    ACTIVE = "active"
    ENDING = "ending"


LAUNCHER_NEXT: dict[LauncherState, frozenset[LauncherState]] = {
    LauncherState.OPENING: frozenset({LauncherState.READY, LauncherState.CLOSING}),
    LauncherState.READY: frozenset({LauncherState.CLOSING}),
    LauncherState.CLOSING: frozenset(),
}
RANK_NEXT: dict[RankState, frozenset[RankState]] = {
    RankState.WAITING: frozenset({RankState.FORKING}),
    RankState.FORKING: frozenset({RankState.PREPARING, RankState.ENDING}),
    RankState.PREPARING: frozenset({RankState.PREPARED, RankState.ENDING}),
    RankState.PREPARED: frozenset({RankState.ACTIVATING, RankState.ENDING}),
    RankState.ACTIVATING: frozenset({RankState.READY, RankState.ENDING}),
    RankState.READY: frozenset({RankState.ACTIVE, RankState.ENDING}),
    RankState.ACTIVE: frozenset({RankState.ENDING}),
    RankState.ENDING: frozenset(),
}
S = TypeVar("S", LauncherState, RankState)


def moved(table: dict[S, frozenset[S]], old: S, new: S) -> S:
    """Return `new`; an illegal transition is our own bug."""
    assert new in table[old], f"{old} -> {new}"
    return new


@dataclass(slots=True, kw_only=True)
class Launcher:
    """One launcher; ids are never used again."""

    id: int
    job: str
    bundle: str
    since_s: float
    state: LauncherState = LauncherState.OPENING

    def move(self, new: LauncherState) -> None:
        """Change state along the table."""
        self.state = moved(LAUNCHER_NEXT, self.state, new)


@dataclass(slots=True, kw_only=True)
class Rank:
    """One rank of a generation on this node."""

    key: RankKey
    state: RankState = RankState.WAITING
    pid: int | None = None
    heard_s: float = 0.0  # last sign of life
    busy_s: float = float("-inf")  # when its process was last seen to compute
    has_spoken: bool = False  # its socket is up and its stream flows
    doubt: str = ""  # a failed call; told if the process ends without a word
    doubt_s: float = 0.0
    kill_at_s: float = 0.0  # when it is ending

    @property
    def may_copy(self) -> bool:
        """Whether it may be copying its state; one that is ending then ends by itself."""
        return self.state in (RankState.ACTIVE, RankState.ENDING)

    def end(self, kill_at_s: float) -> None:
        """Nothing more is expected of the process but its exit."""
        self.kill_at_s = kill_at_s
        self.move(RankState.ENDING)

    def move(self, new: RankState) -> None:
        """Change state along the table."""
        self.state = moved(RANK_NEXT, self.state, new)


@dataclass(slots=True, kw_only=True)
class Generation:
    """The ranks of one generation on this node that are not gone."""

    order: StartOrder
    ranks: dict[int, Rank]
    endpoints: tuple[Endpoint, ...] = ()


@dataclass(slots=True, kw_only=True)
class Job:
    """What this node holds of a job; `newest` outlives its generations and fences late commands."""

    newest: int = 0
    launcher: Launcher | None = None
    generations: dict[int, Generation] = field(default_factory=dict)
    warm: LauncherOrder | None = None  # the manager wants the launcher kept ready, and to hear how it is
    is_forgotten: bool = False

    def all_ranks(self) -> list[Rank]:
        """Return the ranks of all generations, the oldest first."""
        return [
            rank
            for _, generation in sorted(self.generations.items())
            for _, rank in sorted(generation.ranks.items())
        ]
