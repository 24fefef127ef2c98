"""What a client hears from a manager and tells it, as typed records; no calls."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from varuna_manager.core.phases import TERMINAL, JobPhase
from varuna_manager.planner.request import Explanation
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.layout import Infeasible, Plan
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.profile import Profile, ProfiledModel


@dataclass(frozen=True, slots=True, kw_only=True)
class JobStatus:
    """One job as the manager sees it now; times are Unix seconds."""

    job: str
    name: str
    state: str
    reason: str
    generation: int
    layout: str
    nodes: int
    step: int  # committed
    durable_step: int
    num_steps: int
    loss: float
    samples_per_s: float
    eta_s: float  # negative: unknown
    submitted_at: float
    ended_at: float
    replayed_steps: int
    weights_sha256: str
    user: str
    morphs: int
    recoverable_step: int  # survives any single loss; at least `durable_step`
    durable_at: float  # when durable_step was heard of; 0: never

    @property
    def is_over(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.state in TERMINAL

    @property
    def has_succeeded(self) -> bool:
        """Whether it reached its last step."""
        return self.state == JobPhase.SUCCEEDED


@dataclass(frozen=True, slots=True, kw_only=True)
class Copies:
    """What a node's memory may hold of one generation of a job."""

    job: str
    generation: int
    segments: tuple[int, ...]
    step: int  # the newest that is known to be complete; negative: none is


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeStatus:
    """One node as the manager sees it now."""

    node: str
    state: str
    reason: str
    incarnation: str
    slots: int
    device_kind: str
    job: str
    ranks: tuple[int, ...]
    notice_in_s: float  # negative: none
    notices: str
    pid: int
    pool: str  # empty: of no pool whose provider lists it
    copies: tuple[Copies, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolStatus:
    """One pool as the manager sees it now; negative numbers: unknown."""

    pool: str
    provider: str
    running: int  # machines, by phase
    starting: int
    leaving: int
    stopped: int
    desired: int  # the provider's own target
    wanted: int  # what the demand asks of it
    min: int
    max: int
    price: float  # dollars per hour of a node
    reason: str  # why it is not as wanted
    retry_in_s: float  # until it is asked again after a shortage
    read_ago_s: float  # age of the newest reading
    warnings: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRecord:
    """What happened, by whom, why; ids grow."""

    id: int
    at: float
    job: str
    node: str
    generation: int
    what: str
    who: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenStatus:
    """One ticket (kind JOIN) or user token (USER); times are Unix seconds."""

    id: str
    kind: str
    name: str  # node or user
    created_at: float
    expires_at: float
    state: str
    created_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRecord:
    """One committed step; a step that was replayed after a loss has one record a generation."""

    step: int
    generation: int
    loss_hex: str
    loss: float
    samples: int
    step_s: float
    at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LogChunk:
    """Whole lines of one rank's output; rank -1 is the launcher and the setup command."""

    generation: int
    rank: int
    data: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanReport:
    """A plan with its reasons, or why there is none."""

    outcome: Plan | Infeasible
    explanation: Explanation | None
    profile: ProfiledModel | None = None  # that the next plan goes by, where it was asked for


@dataclass(frozen=True, slots=True, kw_only=True)
class Storage:
    """Where checkpoints are."""

    url: str
    job: str  # id


@dataclass(frozen=True, slots=True, kw_only=True)
class Submission:
    """What a submit carries; the bundle was put before."""

    spec: JobSpec
    model: ModelRecord
    bundle: str
    user: str
    request_id: str  # a repeated one gives the same job
    job: str = ""  # id, where a checkpoint was put for it before
    secrets: Mapping[str, str] = field(default_factory=dict, repr=False)
    profile: Profile | None = None  # dry runs only; None: the manager's cached one
