"""The job file's schema: strict, every field documented, nothing guessed. Reading text is `spec.jobfile`."""

from enum import StrEnum
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

from varuna_runtime.spec.layout import ScheduleKind

Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]
EnvName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$")]
Count = Annotated[int, Field(ge=1)]
STORE_SCHEMES = ("file", "s3", "az", "gs")  # of URLs of object stores
Duration = Annotated[float, Field(gt=0)]


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, use_attribute_docstrings=True)


class Precision(StrEnum):
    """Compute type of forward and backward; weights and optimizer state stay float32."""

    FP32 = "fp32"
    BF16 = "bf16"
    FP16 = "fp16"


class ReduceDtype(StrEnum):
    """What gradients are rounded to on their way between replicas; they are summed in float32."""

    FP32 = "fp32"
    BF16 = "bf16"


class Exactness(StrEnum):
    """See the exactness contract."""

    BITWISE = "bitwise"
    STATISTICAL = "statistical"


class Objective(StrEnum):
    """What plans are chosen by."""

    THROUGHPUT = "throughput"
    COST = "cost"
    PROGRESS = "progress"


class Nodes(_Strict):
    """How many nodes the job can use."""

    min: Count = 1
    """Below this the job is parked."""
    max: Count = 16
    """More are left idle; it also fixes V when `virtual_replicas` is auto."""


class LayoutChoice(_Strict):
    """Pins part of the layout; whatever is auto is chosen by the planner."""

    stages: Count | Literal["auto"] = "auto"
    replicas: Count | Literal["auto"] = "auto"


class Checkpoint(_Strict):
    """Where and how often the job becomes durable."""

    store: str | None = None
    """file:// URL of an object store; default: the manager's."""
    interval_steps: Count | Literal["auto"] = "auto"
    keep: Count = 3
    """How many durable steps are retained."""


class Retries(_Strict):
    """How often a start is tried again, by cause. Losing nodes is free and unlimited."""

    user_error: Annotated[int, Field(ge=0)] = 0
    """An exception in the training script."""
    worker_crash: Annotated[int, Field(ge=0)] = 10
    """A worker killed or exiting by itself while its node lives; reset by a durable step."""
    hang: Annotated[int, Field(ge=0)] = 10
    """A worker that stopped making progress."""


class JobSpec(_Strict):
    """One training job."""

    name: Name
    entrypoint: str
    """Python script, relative to `workdir`."""
    args: tuple[str, ...] = ()
    workdir: str = "."
    """Folder shipped to the nodes, relative to the job file."""
    env: dict[EnvName, str] = {}
    secrets: tuple[EnvName, ...] = ()
    """Environment variables of the submitting shell, handed to the workers; never logged or journaled."""
    setup: str = ""
    """Shell command run once per node and bundle before the script is imported."""
    nodes: Nodes = Nodes()
    batch_size: Count
    """Samples of one global step."""
    micro_batch_size: Count | Literal["auto"] = "auto"
    virtual_replicas: Count | Literal["auto"] = "auto"
    """V of the exactness contract; auto: smallest power of two >= 4 x the largest useful D, at most M."""
    layout: LayoutChoice = LayoutChoice()
    schedule: ScheduleKind | Literal["auto"] = "auto"
    objective: Objective = Objective.THROUGHPUT
    """Most samples per second, per dollar (cost), or until the next losses of nodes are over (progress)."""
    precision: Precision = Precision.FP32
    exactness: Exactness = Exactness.BITWISE
    reduce_dtype: ReduceDtype = ReduceDtype.FP32
    """What gradients travel in between replicas; bf16 needs `exactness: statistical`."""
    shard_optimizer: bool = False
    """Each replica keeps optimizer state for its share of the parameters only."""
    offload_optimizer: bool = False
    """Optimizer state and step live in host memory where workers run on GPUs."""
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    steps: Count | None = None
    """Length in steps; overrides the script. At most one of steps and epochs."""
    epochs: Count | None = None
    clip_grad_norm: Annotated[float, Field(gt=0)] | None = None
    """Overrides the script's global gradient norm limit."""
    threads_per_worker: Count = 1
    checkpoint: Checkpoint = Checkpoint()
    retries: Retries = Retries()
    priority: Annotated[int, Field(ge=0, le=100)] = 50
    """Higher starts first."""
    max_run_time_s: Duration | None = None
    max_price: Annotated[float, Field(gt=0)] | None = None
    """Dollars per hour that all nodes together may cost while this job has them; it gets fewer instead."""
    hang_timeout_s: Duration = 300.0
    """A step that takes longer than this counts as a hang."""
    metadata: dict[str, str] = {}
