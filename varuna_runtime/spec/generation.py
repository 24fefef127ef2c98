"""What manager and agents say to each other about a generation; nouns only."""

from dataclasses import dataclass
from enum import StrEnum


class GenerationKind(StrEnum):
    """What a generation is for."""

    TRAIN = "train"
    PROFILE = "profile"


class Cause(StrEnum):
    """Why a rank ended early; the wire's FailureCause in lower case."""

    USER_ERROR = "user_error"
    WORKER_CRASH = "worker_crash"
    PEER_LOST = "peer_lost"
    HANG = "hang"
    START_FAILED = "start_failed"
    PLAN_MISMATCH = "plan_mismatch"


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """Where a rank listens for the generation's process group; port 0 if it does not."""

    rank: int
    host: str
    port: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """Ranks of a generation that have a process on a node, or are about to have one."""

    job: str
    generation: int
    ranks: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """What made the first rank of a generation fail; the same on every rank that hears of it."""

    rank: int  # that failed, or is gone
    cause: Cause
    message: str  # one line
    detail: str = ""  # traceback, bounded
