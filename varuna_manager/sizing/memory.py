"""What sizing remembers between passes. It starts empty with each manager: nothing in it is a promise."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from varuna_manager.cloud.provider import PoolReading
from varuna_manager.sizing.decisions import Failed


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolMemory:
    """One pool; times are Unix seconds."""

    reading: PoolReading | None = None  # the newest there was
    read_s: float = 0.0  # when
    failed: Failed | None = None  # why there is no newer one
    failing_since_s: float | None = None
    quiet_until_s: float = 0.0  # it asked not to be called before
    throttled: int = 0  # such answers in a row
    machines: Mapping[str, float] = field(default_factory=dict)  # listed and not gone -> first seen
    strays: Mapping[str, float] = field(default_factory=dict)  # listed in no group -> since
    gone: frozenset[str] = frozenset()  # nodes that the core may not know to be gone yet
    kind: str = ""  # device kind of its nodes, once one has joined
    asked: int | None = None  # target of our last growth, until it is reached or given up
    asked_s: float = 0.0
    lacking_since_s: float | None = None  # its own target is above what lives
    short: str = ""  # why it did not deliver
    shortages: int = 0  # in a row
    step: int | None = None  # most machines of the next growth; None: as many as are missing
    retry_at_s: float = 0.0  # no growth before
    boot_failures: int = 0  # machines in a row whose agent never joined
    released: Mapping[str, float] = field(default_factory=dict)  # node -> first call to end it
    tried: Mapping[str, float] = field(default_factory=dict)  # node, or "" for giving up -> last call
    stuck: frozenset[str] = frozenset()  # told to be still there
    told: frozenset[str] = frozenset()  # troubles told since all was well
    is_write_failing: bool = False  # the last write was refused, or not answered
    warned: frozenset[str] = frozenset()
    wanted: int = 0  # nodes that the demand asks of it
    limit: str = ""  # why it is not asked for more


@dataclass(frozen=True, slots=True, kw_only=True)
class Ceiling:
    """More nodes than this were of no use to a job; None: doubted, so that it is tried once more."""

    nodes: int | None
    since_s: float
    for_s: float  # doubted after this


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """All pools, and what was learned of nodes and jobs."""

    pools: Mapping[str, PoolMemory] = field(default_factory=dict)
    idle: Mapping[str, float] = field(default_factory=dict)  # node without work -> since
    ceilings: Mapping[str, Ceiling] = field(default_factory=dict)  # by job

    def of(self, pool: str) -> PoolMemory:
        """Return what is known of a pool."""
        return self.pools.get(pool, PoolMemory())

    def having(self, pool: str, changed: PoolMemory) -> "Memory":
        """Return the memory with one pool changed."""
        return replace(self, pools={**self.pools, pool: changed})
