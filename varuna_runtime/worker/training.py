"""The training a script describes, checked; and what the job file makes of it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from varuna_runtime.spec.job import Exactness, JobSpec, Precision
from varuna_runtime.spec.layout import BatchShape
from varuna_runtime.worker.hosts import Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Arguments of `varuna.train`; batches are whatever `collate` makes."""

    model: Callable[[], nn.Module | Sequence[nn.Module]]
    loss: Callable[[Any, Any], Tensor | tuple[Tensor, Tensor]]  # (output, batch) -> mean, or (sum, weight)
    optimizer: Callable[[Any], Any]  # named parameters of a stage -> torch.optim.Optimizer
    dataset: Any
    batch_size: int
    steps: int | None = None
    epochs: int | None = None
    scheduler: Callable[[Any], Any] | None = None  # optimizer -> torch LR scheduler, stepped once a step
    clip_grad_norm: float | None = None
    micro_batch_size: int | None = None
    shuffle: bool = True
    seed: int = 0
    collate: Callable[[list[Any]], Any] | None = None
    inputs: Callable[[Any], Any] | None = None

    def model_inputs(self, batch: Any) -> tuple[Tensor, ...]:
        """Return what the first segment receives for a batch."""
        raise NotImplementedError(batch)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResolvedTraining:
    """The training's numbers once the job file has had its say."""

    batch_size: int
    batch: BatchShape | None  # None: the job's first plan chooses m and V
    seed: int
    num_samples: int | None  # length of the data set; None: a stream
    num_steps: int
    total_samples: int | None  # set when epochs bound the training: the last step may be short
    clip_grad_norm: float | None
    precision: Precision
    exactness: Exactness
    threads: int  # intra-op threads of a worker
    shuffle: bool

    @property
    def batch_alone(self) -> BatchShape:
        """The shape a lone run uses: `batch`, or one micro-batch a step."""
        return self.batch or BatchShape(
            batch_size=self.batch_size, micro_batch_size=self.batch_size, virtual_replicas=1
        )


def train(**arguments: Any) -> Result:
    """Train; see `Training` for the arguments. Raises InvalidInput on a wrong one."""
    raise NotImplementedError(arguments)


def resolve(training: Training, spec: JobSpec | None) -> ResolvedTraining:
    """Combine script and job file; the job file wins. Raises InvalidInput when the length is not known."""
    raise NotImplementedError(training, spec)
