"""The nouns of the agent, as plain records; protobuf stays in `codec`."""

from dataclasses import dataclass, field

from varuna_runtime.spec.copies import Vault, Version
from varuna_runtime.spec.generation import Cause as Cause
from varuna_runtime.spec.generation import Endpoint as Endpoint
from varuna_runtime.spec.generation import GenerationKind as GenerationKind
from varuna_runtime.spec.generation import Running as Running
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.manifest import EvaluationRecord


@dataclass(frozen=True, slots=True, kw_only=True, order=True)
class RankKey:
    """One rank of one generation."""

    job: str
    generation: int
    rank: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LauncherOrder:
    """What a launcher of a job is opened with: by a Warm, or as a part of a Start."""

    job: str
    spec: JobSpec
    job_json: bytes
    bundle: str
    bundle_store_url: str
    secrets: dict[str, str] = field(repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class StartOrder:
    """The manager's Start, validated."""

    job: str
    generation: int
    kind: GenerationKind
    spec: JobSpec
    job_json: bytes
    plan_json: bytes
    model_json: bytes
    ranks: tuple[int, ...]
    bundle: str
    store_url: str
    bundle_store_url: str
    resume_step: int | None
    secrets: dict[str, str] = field(repr=False)
    generation_secret: str = field(repr=False)
    copies_secret: str = field(default="", repr=False)  # of the job; empty: no copies are kept
    vaults: tuple[Vault, ...] = ()  # of all nodes that may hold copies of the job
    buddies: dict[int, tuple[Vault, ...]] = field(default_factory=dict)  # of the ranks here
    unmended_s: float = 0.0  # mean time between losses that no copies mend; 0: unknown

    @property
    def launcher(self) -> LauncherOrder:
        """What its launcher needs."""
        return LauncherOrder(
            job=self.job,
            spec=self.spec,
            job_json=self.job_json,
            bundle=self.bundle,
            bundle_store_url=self.bundle_store_url,
            secrets=self.secrets,
        )


# --- reports of a rank ---------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """Plan and state are held; `endpoint.port` is 0 unless the rank listens."""

    plan_hash: str
    endpoint: Endpoint
    resume_step: int
    loaded: Version | None = None  # None: a worker that knows of no versions
    loadable: tuple[Version, ...] = ()  # `loaded` included, newest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The process group exists."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """A committed step."""

    step: int
    loss_hex: str
    loss: float
    weight: float
    samples: int
    step_s: float
    grad_norm: float | None
    learning_rate: float | None
    loss_scale: float | None
    is_skipped: bool
    busy_s: float = 0.0  # in ops of the rank that tells it; 0: unknown
    busy_samples: int = 0  # these were of
    recoverable: int | None = None  # committed steps that survive any single loss; None: as durable


@dataclass(frozen=True, slots=True, kw_only=True)
class CommittedStep:
    """A step told again, out of a checkpoint; `generation` committed it."""

    generation: int
    step: StepDone


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluated:
    """A finished evaluation."""

    record: EvaluationRecord
    evaluation_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Active:
    """The first step begins."""

    step: int
    earlier: tuple[CommittedStep, ...] = ()
    evaluations: tuple[Evaluated, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """A manifest was put."""

    step: int
    manifest_key: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drained:
    """Stopped after `step` committed steps."""

    step: int
    is_kept: bool = False  # in the memory of nodes only; else durable


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Every rank's state of this step, and so of this generation, is where a loss does not reach it."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailed:
    """A step that was tried and did not become durable; training goes on."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Reached the end."""

    step: int
    weights_sha256: str
    profile_json: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class PeerSilent:
    """A peer fell silent though its connection is open, or is heard again: `silent_s` is then 0."""

    rank: int
    silent_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Ended early."""

    cause: Cause
    message: str
    detail: str = ""
    exit_code: int | None = None
    signal: int | None = None
    peer_rank: int | None = None


RankReport = (
    Prepared
    | Ready
    | Active
    | Evaluated
    | Durable
    | Kept
    | SaveFailed
    | PeerSilent
    | Drained
    | Finished
    | Failed
)
