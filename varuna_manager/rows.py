"""What the manager's database keeps, as records; nothing of how."""

from dataclasses import dataclass, fields

from varuna_manager.core.events import Durable
from varuna_manager.planner.request import PlanOutcome
from varuna_runtime.spec import canonical
from varuna_runtime.spec.layout import Infeasible, Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class SnapshotRow:
    """The state after the journal entry `journal_id`; `format` tells versions apart."""

    journal_id: int
    format: str
    body: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRow:
    """A line of the event list users see."""

    at_s: float
    job: str
    node: str
    generation: int
    what: str
    who: str
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredEvent:
    """An event line with its id, which only grows."""

    id: int
    line: EventRow


@dataclass(frozen=True, slots=True, kw_only=True)
class StepRow:
    """A committed step; a step replayed in a later generation is a row of its own."""

    job: str
    step: int
    generation: int
    loss_hex: str
    loss: float
    samples: int
    step_s: float
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricRow:
    """A committed step or a finished evaluation as it was told; of replays the first is kept."""

    job: str
    step: int  # number of committed steps
    is_evaluation: bool
    generation: int
    at_s: float
    body: bytes  # the message StepDone or EvaluationDone


@dataclass(frozen=True, slots=True, kw_only=True)
class StepTotals:
    """What all recorded steps of a job come to."""

    replayed_steps: int
    last_loss: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRow:
    """An answer of the planner; `plan_json` is empty when it was infeasible."""

    job: str
    plan_hash: str
    plan_json: bytes
    reason: str
    change: str
    explanation_json: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRow:
    """A measured profile by what it was measured for."""

    workload: str
    device_kind: str
    profile_json: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """What one commit makes durable, all or nothing."""

    journal: tuple[Durable, ...] = ()
    events: tuple[EventRow, ...] = ()
    steps: tuple[StepRow, ...] = ()
    metrics: tuple[MetricRow, ...] = ()
    plans: tuple[PlanRow, ...] = ()
    profiles: tuple[ProfileRow, ...] = ()

    @property
    def is_empty(self) -> bool:
        """True when there is nothing to write."""
        return not any(getattr(self, field.name) for field in fields(self))


def plan_row(job: str, answer: PlanOutcome) -> PlanRow:
    """Return the row that explains an answer of the planner."""
    explanation = b"" if answer.explanation is None else canonical.dumps(answer.explanation)
    match answer.outcome:
        case Plan() as plan:
            return PlanRow(
                job=job,
                plan_hash=plan.hash(),
                plan_json=canonical.dumps(plan),
                reason="",
                change="",
                explanation_json=explanation,
            )
        case Infeasible(reason=reason, change=change):
            return PlanRow(
                job=job,
                plan_hash="",
                plan_json=b"",
                reason=reason,
                change=change,
                explanation_json=explanation,
            )
