"""The nouns of the agent, as plain records; protobuf stays in `codec`."""

from dataclasses import dataclass, field

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
    """Stopped after `step` committed, durable steps."""

    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Reached the end."""

    step: int
    weights_sha256: str
    profile_json: bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """Ended early."""

    cause: Cause
    message: str
    detail: str = ""
    exit_code: int | None = None
    signal: int | None = None
    peer_rank: int | None = None


RankReport = Prepared | Ready | Active | Evaluated | Durable | Drained | Finished | Failed
