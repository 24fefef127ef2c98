"""What the core wants done. Actions are idempotent; they are dispatched after their event is journaled."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from varuna_manager.core.events import DeadlinePassed, NodeSilent, ProfileRefreshed
from varuna_manager.planner.request import PlanRequest
from varuna_runtime.spec.copies import Vault, Version
from varuna_runtime.spec.generation import Endpoint, GenerationKind
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.layout import Plan
from varuna_runtime.spec.model import ModelRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class FindProfile:
    """Look for a cached profile; answered by ProfileReady or ProfileMissing."""

    job: str
    workload: str  # profile.workload_hash of the job
    device_kind: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MakePlan:
    """Plan off the loop; answered by PlanMade with the same `pool_version`."""

    job: str
    pool_version: int
    request: PlanRequest


@dataclass(frozen=True, slots=True, kw_only=True)
class StartRanks:
    """Send Start to one node."""

    node: str
    incarnation: str
    job: str
    generation: int
    kind: GenerationKind
    plan: Plan
    spec: JobSpec
    model: ModelRecord
    bundle: str
    ranks: tuple[int, ...]
    resume_step: int | None
    vaults: tuple[Vault, ...] = ()  # of all nodes that may hold copies of the job
    buddies: Mapping[int, tuple[Vault, ...]] = field(default_factory=dict)  # of `ranks`
    unmended_s: float = 0.0  # mean time between losses that no copies mend, as expected; 0: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmNode:
    """Send Warm to one node: the job's launcher must be ready there; answered by NodeWarmed."""

    node: str
    incarnation: str
    job: str
    spec: JobSpec
    bundle: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ActivateRanks:
    """Send Activate to one node: every rank is prepared and holds the same plan."""

    node: str
    incarnation: str
    job: str
    generation: int
    endpoints: tuple[Endpoint, ...]
    resume: Version | None = None  # what every rank starts from; None: what it loaded


@dataclass(frozen=True, slots=True, kw_only=True)
class DrainRanks:
    """Send Drain to one node: stop at the agreed step."""

    node: str
    incarnation: str
    job: str
    generation: int
    within_s: float
    reason: str
    persist: bool = True  # at a durable step; else copies in memory are enough


@dataclass(frozen=True, slots=True, kw_only=True)
class AbortRanks:
    """Send Abort to one node: end every process of that generation now."""

    node: str
    incarnation: str
    job: str
    generation: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RetireCopies:
    """Send Retire to one node: copies of generations before `generation` may go."""

    node: str
    incarnation: str
    job: str
    generation: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetJob:
    """Send Forget to one node: the job is terminal."""

    node: str
    incarnation: str
    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseNode:
    """Send Leave to one node: it is drained and nothing runs on it."""

    node: str
    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class FenceNode:
    """Send Fenced: this incarnation was declared lost or superseded."""

    node: str
    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RaiseDurable:
    """Feed this durable event back through the journal: a threshold was crossed."""

    event: DeadlinePassed | NodeSilent | ProfileRefreshed


@dataclass(frozen=True, slots=True, kw_only=True)
class Announce:
    """A line of the job's and node's event list: what happened, by whom, why."""

    what: str
    why: str
    who: str = "manager"
    job: str = ""
    node: str = ""
    generation: int = 0


AnyAction = (
    FindProfile
    | MakePlan
    | StartRanks
    | WarmNode
    | ActivateRanks
    | DrainRanks
    | AbortRanks
    | RetireCopies
    | ForgetJob
    | ReleaseNode
    | FenceNode
    | RaiseDurable
    | Announce
)
