"""Layout and plan: which segments run on which slot of which node. Data only; choosing is the planner's."""

from dataclasses import dataclass
from enum import StrEnum

from varuna_runtime.spec import canonical


class ScheduleKind(StrEnum):
    """The program families; see `spec.schedule`."""

    GPIPE = "gpipe"
    ONE_F_ONE_B = "1f1b"
    EAGER = "eager-1f1b"
    VARUNA = "varuna"
    WORK_CONSERVING = "work-conserving"
    ZERO_BUBBLE = "zero-bubble"


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """P x D: `stages` pipeline positions times `replicas` data-parallel copies."""

    stages: int
    replicas: int

    @property
    def world_size(self) -> int:
        """Number of ranks."""
        return self.stages * self.replicas

    def rank(self, *, stage: int, replica: int) -> int:
        """Ranks go replica by replica: rank = replica * P + stage."""
        return replica * self.stages + stage

    def stage_of(self, rank: int) -> int:
        """Return the stage a rank runs."""
        return rank % self.stages

    def replica_of(self, rank: int) -> int:
        """Return the replica a rank belongs to."""
        return rank // self.stages

    def __str__(self) -> str:
        """Return e.g. `2x3` (P x D)."""
        return f"{self.stages}x{self.replicas}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Stage:
    """Contiguous segments [first, last) run by one pipeline position."""

    first: int
    last: int
    recompute: bool  # drop activations after forward and replay it before backward
    in_flight: int = 0  # most micro-batches between F and B; 0: the program's own number


@dataclass(frozen=True, slots=True, kw_only=True)
class Slot:
    """One device on a node."""

    node: str
    index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchShape:
    """What is chosen once per job and taken as given by every later plan (contract E2, E4)."""

    batch_size: int  # samples of a global step
    micro_batch_size: int
    virtual_replicas: int  # V, 1 <= V <= ceil(batch_size / micro_batch_size)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """Layout + stage cuts + schedule + placement; the same bytes on every rank of a generation.

    Invariants: `stages` partition [0, num_segments) in order; `placement[rank]` is that rank's slot,
    no slot twice; replicas <= batch.virtual_replicas.
    """

    layout: Layout
    stages: tuple[Stage, ...]
    schedule: ScheduleKind
    batch: BatchShape
    placement: tuple[Slot, ...]
    predicted_step_s: float

    @property
    def nodes(self) -> tuple[str, ...]:
        """Nodes used, sorted."""
        return tuple(sorted({slot.node for slot in self.placement}))

    def ranks_on(self, node: str) -> tuple[int, ...]:
        """Return the ranks placed on `node`, ascending."""
        return tuple(r for r, slot in enumerate(self.placement) if slot.node == node)

    def hash(self) -> str:
        """SHA-256 of the canonical JSON; what ranks compare before a process group exists."""
        return canonical.digest(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """No plan, and why; `change` is the smallest change that would help, or empty."""

    reason: str
    change: str = ""
