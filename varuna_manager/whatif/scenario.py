"""What is replayed: a pool, a job, what things cost, and the policies to compare. Records only."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from varuna_manager.core.config import CoreConfig
from varuna_manager.planner.request import PlannableNode, PlanRequest
from varuna_manager.traces import Recording
from varuna_runtime.spec.job import JobSpec, LayoutChoice, Objective
from varuna_runtime.spec.layout import BatchShape
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.profile import Profile

SHORTEST_SAVES_S = 2.0
STALL_FACTOR, WRITE_FACTOR = 20.0, 5.0
"""As a worker paces its saves where the job leaves it to us; see `worker.saving`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Costs:
    """Seconds that the planner does not predict."""

    morph_s: float = 2.0  # from the order to start until the first step begins, launchers being ready
    warm_s: float = 8.0  # a new node's launcher
    plan_s: float = 0.1
    detect_s: float = 0.3  # from a loss until the peers report it
    save_stall_s: float = 0.0  # training stands still for a save
    save_write_s: float = 1.0  # from then on until the save is durable


@dataclass(frozen=True, slots=True, kw_only=True)
class Machines:
    """What every node of the pool is; prices are dollars per hour."""

    slots: int = 1
    memory_bytes: int = 16 * 2**30  # per slot
    price: float | None = None
    on_demand_price: float | None = None
    notice_s: float = 0.0  # how long before its end a node is warned


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """`recording` holds at most the job's nodes.max nodes at a time: see `lending.lent`."""

    recording: Recording
    spec: JobSpec
    model: ModelRecord
    profile: Profile
    machines: Machines = field(default_factory=Machines)
    stops_when_done: bool = False  # else the job trains on until the recording ends

    @property
    def device_kind(self) -> str:
        """The kind of every node: the one that was profiled."""
        return self.profile.device_kind or "any"

    def request(
        self, nodes: Iterable[str], batch: BatchShape | None, *, stages: int | None = None
    ) -> PlanRequest:
        """Return the question for the fastest plan on these nodes, with P pinned to `stages` if given."""
        spec = self.spec.model_copy(update={"objective": Objective.THROUGHPUT})
        if stages is not None:
            layout = LayoutChoice(stages=stages, replicas=spec.layout.replicas)
            spec = spec.model_copy(update={"layout": layout})
        return PlanRequest(
            spec=spec,
            model=self.model,
            profile=self.profile,
            nodes=tuple(self._node(name) for name in sorted(nodes)),
            batch=batch,
        )

    def _node(self, name: str) -> PlannableNode:
        return PlannableNode(
            node=name,
            slots=self.machines.slots,
            memory_bytes=self.machines.memory_bytes,
            device_kind=self.device_kind,
            price_per_hour=self.machines.price,
        )

    def steps_between_saves(self, step_s: float, costs: Costs) -> int:
        """Return after how many steps a save begins."""
        steps = self.spec.checkpoint.interval_steps
        if steps != "auto":
            return steps
        pause_s = max(SHORTEST_SAVES_S, STALL_FACTOR * costs.save_stall_s, WRITE_FACTOR * costs.save_write_s)
        return max(1, -int(-pause_s // step_s))


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """The manager's core with these thresholds."""

    name: str = "ours"
    objective: Objective | None = None  # instead of the job's
    costs: Costs = field(default_factory=Costs)
    core: CoreConfig = field(default_factory=CoreConfig)


@dataclass(frozen=True, slots=True, kw_only=True)
class Paper:
    """As the paper's manager: a restart at every change, from the last checkpoint, with equal stages.

    P divides the number of equal blocks. A checkpoint is taken first where nodes only came, and nobody
    waits for launchers: opening them is a part of the restart.
    """

    name: str = "paper"
    costs: Costs = field(default_factory=lambda: Costs(morph_s=12.0, warm_s=0.0, plan_s=0.0, detect_s=0.0))


Policy = Ours | Paper
