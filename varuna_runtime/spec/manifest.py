"""The manifest of a durable step: put last, only if absent, so its existence is the commit (contract E6)."""

from dataclasses import dataclass

FORMAT = 2  # 1, which is read as well: one SHA-256 a shard and nothing else
READABLE = (1, 2)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorEntry:
    """One tensor inside a shard: a parameter, a buffer, or one piece of optimizer state of a parameter."""

    name: str  # "param:<name>", "buffer:<name>", "optim:<name>:<state>"
    shape: tuple[int, ...]
    dtype: str
    num_bytes: int
    offset: int = 0  # of its first byte in the object
    checksum: str = ""  # of its bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardEntry:
    """One safetensors object; its own metadata repeats job, step, generation and segment."""

    key: str
    segment: int
    num_bytes: int
    tensors: tuple[TensorEntry, ...]  # by name
    checksum: str = ""  # of its header and of the tensors' checksums
    sha256: str = ""  # in format 1: of the whole object


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRecord:
    """The loss of one committed step; `loss_hex` is float.hex(), so it carries every bit."""

    step: int
    loss_hex: str
    weight: float
    samples: int
    generation: int = 0  # that committed it; 0: a lone run
    is_skipped: bool = False  # its gradients overflowed in fp16, so that it changed nothing


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One mean of an evaluation: the loss, or one of the script's metrics."""

    name: str
    value_hex: str  # float.hex()
    weight: float


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationRecord:
    """A finished evaluation."""

    step: int  # number of committed steps
    samples: int
    figures: tuple[Figure, ...]  # the loss first
    generation: int = 0  # that made it; 0: a lone run

    @property
    def values(self) -> dict[str, float]:
        """The means by name."""
        return {figure.name: float.fromhex(figure.value_hex) for figure in self.figures}


@dataclass(frozen=True, slots=True, kw_only=True)
class ScalerState:
    """The dynamic loss scale of fp16."""

    scale: float  # a power of two
    good_steps: int  # applied in a row since the scale changed
    floor_steps: int  # skipped in a row although the scale is at its floor
    has_applied: bool  # whether any step was applied yet


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainerState:
    """What moves together with the weights and is the same on every rank.

    `optimizer_groups` and `scheduler` are JSON texts of the factory-made objects' hyperparameters
    (parameters by name); empty when there is none. `stream_cursor` is JSON, for streaming data only.
    """

    step: int  # number of committed steps; the next step to run
    optimizer_groups: str
    scheduler: str
    stream_cursor: str
    losses: tuple[LossRecord, ...]  # of the last steps, so that none is lost with the node that reported it
    scaler: ScalerState | None = None  # under fp16
    evaluations: tuple[EvaluationRecord, ...] = ()  # the last ones; one at `step` need not be made again


@dataclass(frozen=True, slots=True, kw_only=True)
class Manifest:
    """A complete checkpoint: every tensor of the model and of its optimizer is in exactly one shard."""

    format: int
    job: str
    step: int
    generation: int
    model_hash: str
    shards: tuple[ShardEntry, ...]
    trainer: TrainerState
    tied: tuple[tuple[str, ...], ...] = ()  # names of one parameter in the model; it is held under the first
    sha256: str = ""  # of the manifest without it; not in format 1


@dataclass(frozen=True, slots=True, kw_only=True)
class ImportOrder:
    """What is to become step 0 of a job, and where to."""

    weights: str  # absolute path: safetensors as `pretrained` takes them, or a file of `torch.save`
    store_url: str
    job: str  # id of a job that does not exist yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Ending:
    """The last step of a job is done; rank 0 puts it before it says so, for a manager that is away.

    All nodes may be gone when that manager is back: without this it would train the end again.
    """

    generation: int
    step: int
    weights_sha256: str


def ending_key(job: str) -> str:
    """Key of a job's Ending."""
    return f"jobs/{job}/ending.json"


def checkpoint_prefix(job: str, step: int) -> str:
    """Key prefix of a step's objects; zero-padded, so that listing is in step order."""
    return f"jobs/{job}/checkpoints/{step:012d}"


def manifest_key(job: str, step: int) -> str:
    """Key of a step's manifest."""
    return f"{checkpoint_prefix(job, step)}/manifest.json"


def shard_key(job: str, step: int, generation: int, segment: int, part: int) -> str:
    """Key of a shard; the generation keeps two attempts at one step from overwriting each other."""
    return f"{checkpoint_prefix(job, step)}/g{generation}/s{segment:05d}-{part:03d}.safetensors"
