"""What the core hears. Durable events are journaled before any action they cause; volatile ones never.

Every event is a fact with the time it was seen (`at_s`, Unix seconds, from the daemon's clock).
"""

from collections.abc import Mapping
from dataclasses import dataclass

from varuna_manager.core.config import CoreConfig
from varuna_manager.core.rank_events import Event as Event
from varuna_manager.core.rank_events import GenerationGone as GenerationGone
from varuna_manager.core.rank_events import GenerationKept as GenerationKept
from varuna_manager.core.rank_events import RankActive as RankActive
from varuna_manager.core.rank_events import RankDrained as RankDrained
from varuna_manager.core.rank_events import RankFailed as RankFailed
from varuna_manager.core.rank_events import RankFinished as RankFinished
from varuna_manager.core.rank_events import RankPrepared as RankPrepared
from varuna_manager.core.rank_events import RankReady as RankReady
from varuna_manager.core.rank_events import SaveFailed as SaveFailed
from varuna_manager.core.rank_events import StepDurable as StepDurable
from varuna_manager.core.words import What
from varuna_runtime.spec.generation import Running
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.layout import Infeasible, Plan
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.profile import Profile

# --- durable -------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class ManagerStarted(Event):
    """A manager process took over the store under a new epoch; agents have the lease to come back.

    `config` are the thresholds in force from now on, so that a replay decides as the live manager did.
    """

    epoch: int
    config: CoreConfig | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSubmitted(Event):
    """A valid job with its bundle in the store."""

    job: str
    spec: JobSpec
    model: ModelRecord
    bundle: str
    user: str
    request_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CancelRequested(Event):
    """A user wants the job ended; terminal jobs ignore it."""

    job: str
    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeJoined(Event):
    """An agent said hello: a new node, a new incarnation of one, or the same one reconnecting."""

    node: str
    incarnation: str
    slots: int
    device_kind: str
    memory_bytes: int
    host: str
    notices: str
    pid: int
    running: tuple[Running, ...]
    vault_port: int = 0  # on `host`; 0: the node keeps no copies


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDisconnected(Event):
    """The agent's stream ended; the lease still runs."""

    node: str
    incarnation: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLeft(Event):
    """The agent said goodbye, or the provider says the node is gone."""

    node: str
    incarnation: str  # empty: the machine never was a node
    reason: str
    is_machine: bool = False  # the provider's word: the machine itself is gone


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDrainRequested(Event):
    """An operator wants the node out of use."""

    node: str
    user: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeReceived(Event):
    """The node will vanish at `deadline_s` (daemon's clock)."""

    node: str
    incarnation: str
    deadline_s: float
    source: str
    is_urgent: bool = False  # the work shall move at once; the node goes when it is empty


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeCancelled(Event):
    """The notice was withdrawn."""

    node: str
    incarnation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticeHinted(Event):
    """The node is at risk; nothing is moved for it."""

    node: str
    incarnation: str
    source: str
    detail: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NoticesChanged(Event):
    """The node's source of notices answers again, or no longer; `notices` says as in NodeJoined."""

    node: str
    incarnation: str
    notices: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """Where a node is."""

    node: str
    domain: str  # zone whose machines may be lost together; empty: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class NodesPlaced(Event):
    """A pool's provider lists these nodes, and what one of them costs; only news are told."""

    pool: str
    places: tuple[Place, ...]
    price_per_hour: float | None  # dollars of one node; None: unknown


@dataclass(frozen=True, slots=True, kw_only=True)
class ReleaseDecided(Event):
    """The pool wants to end the node's machine; void if the node has work at that moment.

    Until NodeLeft says that the machine is gone, no incarnation of the node is taken into use.
    """

    node: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Told(Event):
    """A line for the event list from outside the core, such as what a pool did; changes nothing."""

    what: What
    why: str
    who: str
    node: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileReady(Event):
    """A profile for the job: measured by its PROFILE generation, or found in the cache."""

    job: str
    profile: Profile


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileRefreshed(Event):
    """Steps of `generation` up to `step` took other times than the profile says."""

    job: str
    generation: int
    step: int
    factors: tuple[float, ...]  # by stage of that generation's plan: how many times as long
    slow: Mapping[str, float]  # by node: how many times as long as its peers it takes


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileMissing(Event):
    """No cached profile: the core starts a PROFILE generation."""

    job: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanMade(Event):
    """The answer to MakePlan; stale if `pool_version` is no longer the state's."""

    job: str
    pool_version: int
    outcome: Plan | Infeasible
    running_step_s: float | None = None  # of the plan that runs, where the profile was refreshed under it


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeWarmed(Event):
    """The job's launcher on that node holds at `train`, or it does not, and why."""

    job: str
    node: str
    incarnation: str
    ok: bool
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadlinePassed(Event):
    """A threshold the core itself had set was crossed: the lease of a node, or a transient state of a job.

    `subject` is "node:<id>", "job:<id>", or for the drain before the end of a node "notice:<id>"; `deadline`
    repeats the timer so that a newer one voids it.
    """

    subject: str
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSilent(Event):
    """Neither its agent nor, to their peers, its ranks gave a sign of life; see `silence`."""

    node: str
    incarnation: str
    reason: str


# --- volatile ------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class BeatSeen(Event):
    """Something arrived from this incarnation."""

    node: str
    incarnation: str
    running: tuple[Running, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSeen(Event):
    """A committed step of the current generation."""

    job: str
    generation: int
    step: int
    loss: float
    samples: int
    step_s: float
    loss_hex: str
    rank: int | None = None  # that tells it
    busy_s: float = 0.0  # in its ops; 0: unknown
    busy_samples: int = 0  # these were of
    recoverable: int | None = None  # committed steps that survive any single loss; None: as durable


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSilent(Event):
    """A rank hears nothing of a peer, or hears it again: `silent_s` is then 0."""

    job: str
    generation: int
    rank: int  # that says so
    peer: int
    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticked(Event):
    """Time passed; `step` answers crossed thresholds with RaiseDurable(DeadlinePassed) actions."""


Durable = (
    ManagerStarted
    | JobSubmitted
    | CancelRequested
    | NodeJoined
    | NodeDisconnected
    | NodeLeft
    | NodeDrainRequested
    | NoticeReceived
    | NoticeCancelled
    | NoticeHinted
    | NoticesChanged
    | NodesPlaced
    | ReleaseDecided
    | Told
    | ProfileReady
    | ProfileRefreshed
    | ProfileMissing
    | PlanMade
    | RankPrepared
    | RankReady
    | RankActive
    | StepDurable
    | SaveFailed
    | GenerationKept
    | RankDrained
    | RankFinished
    | RankFailed
    | GenerationGone
    | NodeWarmed
    | DeadlinePassed
    | NodeSilent
)
Volatile = BeatSeen | StepSeen | PeerSilent | Ticked
AnyEvent = Durable | Volatile
