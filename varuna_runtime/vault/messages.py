"""What is said to a vault and what it answers, as records; on the wire canonical JSON."""

from dataclasses import dataclass, field
from enum import StrEnum

from varuna_runtime.spec.copies import Copy


class Op(StrEnum):
    """What is asked for; who may ask is in brackets."""

    ALLOCATE = "allocate"  # two memories; their descriptors come with the reply (this node)
    BEGIN = "begin"  # `memory` holds no copy from now on (this node)
    SEAL = "seal"  # `memory` is `copy`; the record follows (this node)
    LEND = "lend"  # `copy`; the record, a descriptor and a stamp come with the reply (this node)
    GIVE_BACK = "give_back"  # `memory` with its `stamp`: was it the same all the time? (this node)
    INVENTORY = "inventory"  # (all)
    RETIRE = "retire"  # copies of generations below `generation` (all)
    RECORD = "record"  # of `copy`; follows the reply (other nodes)
    FETCH = "fetch"  # `num_bytes` of `copy` from `offset` on; chunks and another reply follow (other nodes)
    STORE = "store"  # `copy`; the record follows, chunks follow the reply, then another reply (other nodes)
    ADMIT = "admit"  # `job` with its `secret` (the agent)
    FORGET = "forget"  # (the agent)


class Status(StrEnum):
    """How it went."""

    OK = "ok"
    FULL = "full"  # the limit does not allow it
    GONE = "gone"  # no such copy, or no longer
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One request; which fields count is a matter of `op`."""

    op: Op
    job: str = ""
    generation: int = 0
    rank: int = 0
    num_bytes: int = 0
    offset: int = 0
    memory: int = 0
    stamp: int = 0
    copy: Copy | None = None
    secret: str = field(default="", repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """The answer; `reason` says why not."""

    status: Status
    reason: str = ""
    copies: tuple[Copy, ...] = ()
    memories: tuple[int, ...] = ()  # as many descriptors come with it
    stamp: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Said to the agent whenever it changes: the jobs of which there are copies."""

    jobs: tuple[str, ...]
