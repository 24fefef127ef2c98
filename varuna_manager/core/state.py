"""What the core knows: frozen records, a function of the durable events alone except for `State.seen`."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from varuna_manager.core.config import CoreConfig
from varuna_manager.core.phases import CONNECTED, GONE, TERMINAL, JobPhase, NodePhase
from varuna_runtime.spec.copies import Version
from varuna_runtime.spec.generation import Cause, Endpoint, GenerationKind
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.layout import BatchShape, Plan
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.profile import Profile, workload_hash


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """The newest incarnation of a node."""

    node: str
    incarnation: str
    phase: NodePhase
    reason: str
    since_s: float  # of the phase
    lease_until_s: float  # at least; what was heard since is in `Seen`
    slots: int
    device_kind: str
    memory_bytes: int  # per slot
    host: str
    notices: str
    pid: int
    vault_port: int = 0  # on `host`; 0: it keeps no copies
    joined_s: float = 0.0  # when this incarnation did
    pool: str = ""  # whose provider lists its machine; this and the next two are empty until it said so
    domain: str = ""  # zone whose machines may be lost together
    price_per_hour: float | None = None  # dollars
    awaited: bool = False  # the manager started again and the node has the restart lease to come back
    notice_deadline_s: float | None = None
    notice_source: str = ""
    notice_at_s: float = 0.0
    is_due: bool = False  # under notice, and work must begin to move off it
    is_urgent: bool = False  # it was due at once, however far off its end may be
    drain_user: str | None = None
    drain_reason: str = ""  # where it is not simply that user's wish

    @property
    def is_connected(self) -> bool:
        """True if an action can reach it."""
        return self.phase in CONNECTED

    @property
    def is_gone(self) -> bool:
        """True if this incarnation never comes back."""
        return self.phase in GONE

    @property
    def is_plannable(self) -> bool:
        """True if the planner may use it."""
        return self.phase is NodePhase.READY and self.slots > 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A node that was lost though nobody wanted that."""

    at_s: float
    node: str
    pool: str
    lived_s: float  # from its joining on
    notice_s: float  # how long before its end it was warned; 0: not at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """A node that may still have processes of a job: the newest generation started there."""

    generation: int
    gone_by_s: float | None = None  # set once they must end; the node is fenced after it


@dataclass(frozen=True, slots=True, kw_only=True)
class Holding:
    """What a node may hold in memory: copies of these segments as one generation trained them."""

    generation: int
    segments: tuple[int, ...]  # ascending


class Warmth(StrEnum):
    """Whether a job's launcher is ready on a node."""

    WARMING = "warming"  # told to open it
    WARM = "warm"  # a rank starts there without the launcher's time
    COLD = "cold"  # it failed: not told again before it reconnects


@dataclass(frozen=True, slots=True, kw_only=True)
class Launcher:
    """What is known of a job's launcher on one incarnation of a node."""

    incarnation: str
    warmth: Warmth
    reason: str = ""  # why it is COLD
    deadline_s: float | None = None  # until when growth waits for a WARMING one


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """The current generation of a job and what its ranks have reported."""

    number: int
    kind: GenerationKind
    plan: Plan
    plan_hash: str
    members: Mapping[str, str]  # node -> incarnation it was started on
    resume_step: int | None
    started_s: float
    buddies: Mapping[int, tuple[str, ...]] = field(default_factory=dict)  # by rank: nodes with a copy of it
    endpoints: Mapping[int, Endpoint] = field(default_factory=dict)  # of the prepared ranks
    loadable: Mapping[int, tuple[Version, ...]] = field(default_factory=dict)  # of each prepared rank
    resume: Version | None = None  # what all ranks of a TRAIN generation start from, once it is activated
    is_activated: bool = False
    replayed: int = 0  # committed steps before it that were announced as trained again
    ready: frozenset[int] = frozenset()
    active: frozenset[int] = frozenset()
    drained: Mapping[int, int] = field(default_factory=dict)  # rank -> step
    is_kept: bool = False  # the drained ranks left their step in memory only
    is_persisting: bool = False  # the drain that is under way is to end at a durable step
    finished: frozenset[int] = frozenset()
    first_step: int = 0

    @property
    def ranks(self) -> range:
        """All ranks."""
        return range(self.plan.layout.world_size)

    def unstopped(self, node: str) -> tuple[int, ...]:
        """Return the ranks on `node` that have neither drained nor finished."""
        return tuple(r for r in self.plan.ranks_on(node) if r not in self.finished and r not in self.drained)

    @property
    def is_stopped(self) -> bool:
        """True if every rank has drained or finished."""
        return len(self.finished | self.drained.keys()) == len(self.ranks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowness:
    """How an incarnation of a node was seen to work."""

    factor: float  # how many times as long as its peers it takes
    at_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Ahead:
    """The answer to the newest question, given while the job trained: for the start after its drain."""

    pool_version: int
    plan: Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A submitted job. Terminal ones change in `hosts` and `touched` only."""

    job: str
    seq: int  # order of submission
    spec: JobSpec
    model: ModelRecord
    bundle: str
    user: str
    request_id: str
    submitted_s: float
    phase: JobPhase
    reason: str
    since_s: float  # of the phase
    generation: int = 0  # newest number used; only grows
    run: Run | None = None
    plan: Plan | None = None  # of the newest TRAIN generation
    profile: Profile | None = None
    refreshed_generation: int = 0  # whose steps changed the profile last
    refreshed_s: float = 0.0  # when
    slow: Mapping[str, Slowness] = field(default_factory=dict)  # by incarnation
    device_kind: str = ""
    batch: BatchShape | None = None  # recorded at the first plan
    asked_version: int | None = None  # of the question (profile or plan) that is under way
    refused_version: int | None = None  # pool at which the planner's answer was no
    ahead: Ahead | None = None
    deadline_s: float | None = None  # of the phase
    drain_s: float | None = None  # how long the newest drain took, from asking for it until all was saved
    kept_drain_s: float | None = None  # the same of the newest one that left copies in memory only
    run_limit_s: float | None = None  # end of max_run_time_s
    first_running_s: float | None = None
    last_morph_s: float = 0.0
    morphs: int = 0
    halted_s: float | None = None  # when it last stopped training to train on elsewhere
    morph_s: float | None = None  # how long its morphs took from then on until every rank trained; smoothed
    durable_step: int | None = None
    durable_s: float | None = None  # when that was heard
    passed_over: int = 0  # a step that was durable, and behind which ranks had to go
    durable_announced_s: float = 0.0
    save_failed_s: float | None = None  # since when saves fail
    save_failed_announced_s: float = 0.0
    reached: int = 0  # newest committed step that was told durably: durable, kept, drained or resumed from
    is_reached_exact: bool = False  # nothing was committed beyond it
    stopped_generation: int = 0  # the newest that left its last step in memory
    holders: Mapping[str, tuple[Holding, ...]] = field(default_factory=dict)  # by node, generations ascending
    kept_generation: int = 0  # newest whose state is in safe places: copied whole, or durable
    keep_by_s: float | None = None  # until when copies of older generations are needed without its word
    failures: Mapping[Cause, int] = field(default_factory=dict)  # since the last durable progress
    fruitless: int = 0  # failed generations since the last durable progress
    failed_starts: int = 0  # among those
    first_cause: str = ""  # of those
    open_generation: int = 0  # ended by collateral only: its root cause may still arrive

    hosts: Mapping[str, Host] = field(default_factory=dict)
    launchers: Mapping[str, Launcher] = field(default_factory=dict)  # by node
    offered: frozenset[str] = frozenset()  # nodes of the newest question to the planner
    touched: frozenset[str] = frozenset()  # nodes that may keep its launcher and files
    weights_sha256: str = ""
    ended_s: float | None = None

    @property
    def workload(self) -> str:
        """What its profile is cached under."""
        return workload_hash(self.model, self.spec, self.bundle)

    @property
    def is_over(self) -> bool:
        """True in a terminal phase."""
        return self.phase in TERMINAL


@dataclass(frozen=True, slots=True, kw_only=True)
class Progress:
    """Volatile: what was heard of a job's steps since this manager process started."""

    generation: int
    step: int  # index of the newest committed step
    loss: float
    step_s: float  # smoothed
    recoverable: int | None = None  # committed steps that survive any single loss; None: as durable


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Volatile: what the newest steps took that were not judged yet."""

    generation: int
    times: Mapping[int, tuple[float, ...]]  # by rank, seconds in ops per micro-batch


@dataclass(frozen=True, slots=True, kw_only=True)
class Silences:
    """Volatile: of which ranks of a generation their peers hear nothing."""

    generation: int
    tellers: Mapping[int, frozenset[int]]  # by silent rank: who says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Timer:
    """A deadline of `subject` ("node:<id>", "job:<id>", or "notice:<id of the node>")."""

    subject: str
    deadline_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """The volatile part of the state: empty after replay, never read by a durable event."""

    beats: Mapping[str, float] = field(default_factory=dict)  # node -> at_s, of the current incarnation
    progress: Mapping[str, Progress] = field(default_factory=dict)  # by job
    paces: Mapping[str, Pace] = field(default_factory=dict)  # by job
    raised: frozenset[Timer] = frozenset()  # thresholds whose durable event is on its way
    silences: Mapping[str, Silences] = field(default_factory=dict)  # by job
    last_tick_s: float | None = None
    attentive_since_s: float = 0.0  # the manager has looked at its clock without a pause since
    stood_still_until_s: float = 0.0  # nodes are judged from here on


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Everything. `pool_version` grows whenever the set of plannable nodes changes."""

    config: CoreConfig
    epoch: int = 0
    pool_version: int = 0
    num_submitted: int = 0
    nodes: Mapping[str, Node] = field(default_factory=dict)
    jobs: Mapping[str, Job] = field(default_factory=dict)
    open_jobs: tuple[str, ...] = ()  # not over, or with processes left; in order of submission
    fenced: frozenset[str] = frozenset()  # incarnations that are lost, left or superseded
    losses: tuple[Loss, ...] = ()  # the newest ones, ascending
    ending: Mapping[str, str] = field(default_factory=dict)  # node whose machine its pool ends -> why
    seen: Seen = field(default_factory=Seen)

    def durable(self) -> "State":
        """Return the state as a replay would give it."""
        return replace(self, seen=Seen())

    def is_busy(self, node: str) -> bool:
        """Return True if some job may have ranks on the node."""
        return any(
            node in job.hosts or (job.run is not None and node in job.run.members) for job in self.iter_open()
        )

    def iter_open(self) -> Iterator[Job]:
        """Yield the jobs that are not over or still have processes, in order of submission."""
        return (self.jobs[job] for job in self.open_jobs)
