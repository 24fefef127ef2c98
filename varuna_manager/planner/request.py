"""The planner's question and answer: records only."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from varuna_manager.planner.outlook import Outlook
from varuna_manager.planner.timing import Pipeline
from varuna_runtime.spec.job import JobSpec, Objective
from varuna_runtime.spec.layout import BatchShape, Infeasible, Plan
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.profile import Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannableNode:
    """A node the planner may use."""

    node: str
    slots: int
    memory_bytes: int  # per slot
    device_kind: str
    domain: str = ""  # zone, rack or pool whose nodes are lost together; empty: unknown
    price_per_hour: float | None = None  # dollars; 0: a machine of one's own; None: unknown
    speed: float = 1.0  # of a slot, relative to the profile's

    @property
    def paid_per_hour(self) -> float:
        """The price as far as it is known."""
        return self.price_per_hour or 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """`batch` is None at the job's first plan, which chooses m and V (contract E2)."""

    spec: JobSpec
    model: ModelRecord
    profile: Profile
    nodes: tuple[PlannableNode, ...]
    batch: BatchShape | None
    running: Plan | None = None  # whose step this profile is to predict too
    outlook: Outlook | None = None  # what `objective: progress` reckons with; None: as before any observation
    held: Mapping[str, tuple[int, ...]] = field(default_factory=dict)  # by node: segments in its memory


@dataclass(frozen=True, slots=True, kw_only=True)
class StageLine:
    """One row of the explanation's stage table; times are per micro-batch, bytes are the predicted peak."""

    stage: int
    first: int
    last: int
    recompute: bool
    forward_s: float
    backward_s: float
    memory_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Rival:
    """A candidate that lost, with the reason in words."""

    layout: str
    schedule: str
    micro_batch_size: int
    predicted_step_s: float  # infinity when it does not fit
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why this plan."""

    stages: tuple[StageLine, ...]
    rivals: tuple[Rival, ...]
    lower_bound_s: float
    bubble_share: float  # idle share of a slot's time in a step
    spare_nodes: tuple[str, ...]
    profile_source: str
    network_share: float = 0.0  # of the step, that would go if messages and reductions took no time
    spare_reason: str = ""  # why the spare nodes are idle
    slow_nodes: tuple[str, ...] = ()  # those slower than the fastest, with what the plan makes of them
    timing: Pipeline | None = None  # what was simulated; None: of a manager that did not tell
    objective: Objective = Objective.THROUGHPUT
    value: float = 0.0  # samples per second, per dollar, or until the horizon of `outlook`; 0: not told
    outlook: Outlook | None = None  # of `objective: progress`
    needed_bytes: int = 0  # of state that its ranks load
    moved_bytes: int | None = (
        None  # of these from other nodes' memory, or the store; None: all, none was held
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanOutcome:
    """`explanation` is None when infeasible."""

    outcome: Plan | Infeasible
    explanation: Explanation | None
    running_step_s: float | None = None  # of the running plan, where one was given
