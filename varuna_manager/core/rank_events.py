"""What the core hears of ranks, all durable; `events` is where they are named from."""

from dataclasses import dataclass

from varuna_runtime.spec.copies import Version
from varuna_runtime.spec.generation import Cause, Endpoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Base of all events."""

    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RankPrepared(Event):
    """A rank holds its plan and state and listens."""

    job: str
    generation: int
    rank: int
    plan_hash: str
    endpoint: Endpoint
    resume_step: int
    loaded: Version | None = None  # None: the durable step `resume_step`, or initial weights where it is 0
    loadable: tuple[Version, ...] = ()  # `loaded` included; empty: that alone


@dataclass(frozen=True, slots=True, kw_only=True)
class RankReady(Event):
    """The rank's process group exists."""

    job: str
    generation: int
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankActive(Event):
    """The rank began its first step, `step`."""

    job: str
    generation: int
    rank: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDurable(Event):
    """The manifest of `step` committed steps exists."""

    job: str
    generation: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailed(Event):
    """`step` was tried and did not become durable; training goes on."""

    job: str
    generation: int
    rank: int
    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationKept(Event):
    """Every rank's state of `step` committed steps is where no loss reaches it; told by rank 0, once."""

    job: str
    generation: int
    rank: int
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RankDrained(Event):
    """The rank stopped after `step` committed steps."""

    job: str
    generation: int
    rank: int
    step: int
    is_kept: bool = False  # in the memory of nodes only; else durable


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFinished(Event):
    """The rank reached the end of the training (or of the profile run)."""

    job: str
    generation: int
    rank: int
    step: int
    weights_sha256: str  # rank 0 only, else empty


@dataclass(frozen=True, slots=True, kw_only=True)
class RankFailed(Event):
    """The rank ended early."""

    job: str
    generation: int
    rank: int
    cause: Cause
    message: str
    detail: str
    peer_rank: int | None = None  # whose failure this is, if not its own; of PEER_LOST, who is gone

    @property
    def first_rank(self) -> int:
        """The rank that failed and whose words these are; the ranks it told of it report the same."""
        if self.peer_rank is None or self.cause is Cause.PEER_LOST:
            return self.rank
        return self.peer_rank


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerationGone(Event):
    """No process of that generation is left on that node."""

    job: str
    generation: int
    node: str
