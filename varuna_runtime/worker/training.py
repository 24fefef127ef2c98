"""The training a script describes, and what the job file makes of it."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from varuna_runtime.partition import ANY_POSITIONAL, Arguments
from varuna_runtime.spec.batches import default_virtual_replicas, num_micro_batches
from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.job import Exactness, JobSpec, Precision, ReduceDtype
from varuna_runtime.spec.layout import BatchShape
from varuna_runtime.worker.arguments import check, is_stream
from varuna_runtime.worker.evaluation import Evaluation
from varuna_runtime.worker.hosts import Result, current_host


@dataclass(frozen=True, slots=True, kw_only=True)
class Training:
    """Arguments of `varuna.train`; batches are whatever `collate` makes."""

    model: Callable[[], nn.Module | Sequence[nn.Module]]
    loss: Callable[[Any, Any], Tensor | tuple[Tensor, Tensor]]  # (output, batch) -> mean, or (sum, weight)
    optimizer: Callable[[Any], Any]  # named parameters of the model -> torch.optim.Optimizer
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
    pretrained: str | Path | None = None  # file, folder or index of safetensors with initial values
    evaluation: Evaluation | None = None
    callbacks: Sequence[Any] = ()  # called on rank 0 after each commit; see `worker.callbacks`

    arguments: Arguments = ANY_POSITIONAL  # what the model takes, as `cut` found it

    def model_inputs(self, batch: Any) -> tuple[Tensor, ...]:
        """Return what the first segment receives: `inputs(batch)`, or the first of a pair, or all of it.

        Of a dict these are the values of the model's arguments by name.
        """
        chosen = self._chosen(batch)
        parameters = self.arguments.parameters
        if names := self.arguments.keywords or (parameters if isinstance(chosen, Mapping) else ()):
            return tuple(self._named(chosen, name) for name in names)
        values = tuple(chosen) if isinstance(chosen, tuple | list) else (chosen,)
        for value in values:
            if not isinstance(value, Tensor):
                raise InvalidInput(
                    f"model inputs: seen {type(value).__name__} in a batch of type {type(batch).__name__}, "
                    "wanted tensors; pass inputs=... to train, a function from batch to a tuple of tensors "
                    "or a dict of them"
                )
        if parameters is not None and len(values) != len(parameters):
            raise InvalidInput(
                f"model inputs: seen {len(values)} positional inputs, wanted {len(parameters)}, as forward "
                f"takes ({', '.join(parameters)}); pass inputs=... to train, which returns those it takes"
            )
        return values

    def named_inputs(self, batch: Any) -> dict[str, Tensor]:
        """Return the tensors of a batch that is given by name; empty for any other batch."""
        chosen = self._chosen(batch)
        if not isinstance(chosen, Mapping):
            return {}
        return {str(name): value for name, value in chosen.items() if isinstance(value, Tensor)}

    def _chosen(self, batch: Any) -> Any:
        if self.inputs is not None:
            return self.inputs(batch)
        return batch[0] if isinstance(batch, tuple | list) and len(batch) == 2 else batch

    def _named(self, chosen: Any, name: str) -> Tensor:
        value = chosen.get(name) if isinstance(chosen, Mapping) else None
        if isinstance(value, Tensor):
            return value
        seen = sorted(map(str, chosen)) if isinstance(chosen, Mapping) else type(chosen).__name__
        raise InvalidInput(
            f"model inputs: seen {seen}, wanted a dict with a tensor {name!r}, which the model takes; "
            "rename its keys, or pass inputs=... to train"
        )


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
    reduce_dtype: ReduceDtype = ReduceDtype.FP32
    shard_optimizer: bool = False
    offload_optimizer: bool = False

    @property
    def batch_alone(self) -> BatchShape:
        """The shape a lone run uses: `batch`, or one micro-batch a step."""
        return self.batch or BatchShape(
            batch_size=self.batch_size, micro_batch_size=self.batch_size, virtual_replicas=1
        )


def train(
    *,
    model: Callable[[], nn.Module | Sequence[nn.Module]],
    loss: Callable[[Any, Any], Tensor | tuple[Tensor, Tensor]],
    optimizer: Callable[[Any], Any],
    dataset: Any,
    batch_size: int,
    steps: int | None = None,
    epochs: int | None = None,
    scheduler: Callable[[Any], Any] | None = None,
    clip_grad_norm: float | None = None,
    micro_batch_size: int | None = None,
    shuffle: bool = True,
    seed: int = 0,
    collate: Callable[[list[Any]], Any] | None = None,
    inputs: Callable[[Any], Any] | None = None,
    pretrained: str | Path | None = None,
    evaluation: Evaluation | None = None,
    callbacks: Sequence[Any] = (),
) -> Result:
    """Train; see `Training` for the arguments. Returns only in a lone run.

    Numbers given here are defaults: a job file's `batch_size`, `micro_batch_size`, `seed`, length and
    `clip_grad_norm` win. Raises InvalidInput on a wrong argument, ModelRefused on a model or data set that
    cannot keep the exactness contract.
    """
    training = Training(
        model=model,
        loss=loss,
        optimizer=optimizer,
        dataset=dataset,
        batch_size=batch_size,
        steps=steps,
        epochs=epochs,
        scheduler=scheduler,
        clip_grad_norm=clip_grad_norm,
        micro_batch_size=micro_batch_size,
        shuffle=shuffle,
        seed=seed,
        collate=collate,
        inputs=inputs,
        pretrained=pretrained,
        evaluation=evaluation,
        callbacks=callbacks,
    )
    check(training)
    return current_host().run(training)


def resolve(training: Training, spec: JobSpec | None) -> ResolvedTraining:
    """Combine script and job file; the job file wins. Raises InvalidInput when the length is not known.

    With a job file, micro-batch size and virtual replicas are its alone, because the planner sees only it;
    `auto` there leaves `batch` to the first plan. Alone, V is 1 and m is the script's, or the batch.
    """
    num_samples = None if is_stream(training.dataset) else len(training.dataset)
    batch_size = training.batch_size if spec is None else spec.batch_size
    num_steps, total_samples = _length(training, spec, batch_size, num_samples)
    clip = None if spec is None else spec.clip_grad_norm
    return ResolvedTraining(
        batch_size=batch_size,
        batch=_batch(training, spec),
        seed=training.seed if spec is None else spec.seed,
        num_samples=num_samples,
        num_steps=num_steps,
        total_samples=total_samples,
        clip_grad_norm=training.clip_grad_norm if clip is None else clip,
        precision=Precision.FP32 if spec is None else spec.precision,
        exactness=Exactness.BITWISE if spec is None else spec.exactness,
        threads=torch.get_num_threads() if spec is None else spec.threads_per_worker,
        shuffle=training.shuffle,
        reduce_dtype=ReduceDtype.FP32 if spec is None else spec.reduce_dtype,
        shard_optimizer=spec is not None and spec.shard_optimizer,
        offload_optimizer=spec is not None and spec.offload_optimizer,
    )


def _length(
    training: Training, spec: JobSpec | None, batch_size: int, num_samples: int | None
) -> tuple[int, int | None]:
    """Return (number of steps, number of samples if epochs bound them)."""
    source: Training | JobSpec = training
    if spec is not None and (spec.steps is not None or spec.epochs is not None):
        source = spec
    steps, epochs = source.steps, source.epochs
    if (steps is None) == (epochs is None):
        seen = "neither" if steps is None else "both"
        raise InvalidInput(f"length of the training: seen {seen}, wanted one of steps and epochs")
    if steps is not None:
        return steps, None
    assert epochs is not None
    if num_samples is None:
        raise InvalidInput("epochs: a stream has no length; give steps instead")
    total = epochs * num_samples
    return -(-total // batch_size), total


def _batch(training: Training, spec: JobSpec | None) -> BatchShape | None:
    if spec is None:
        micro = training.micro_batch_size or training.batch_size
        return _checked_shape(training.batch_size, micro, 1)
    if spec.micro_batch_size == "auto":
        return None
    virtual = spec.virtual_replicas
    if virtual == "auto":
        virtual = default_virtual_replicas(spec.batch_size, spec.micro_batch_size, spec.nodes.max)
    return _checked_shape(spec.batch_size, spec.micro_batch_size, virtual)


def _checked_shape(batch_size: int, micro_batch_size: int, virtual_replicas: int) -> BatchShape:
    if micro_batch_size > batch_size:
        raise InvalidInput(
            f"micro_batch_size: seen {micro_batch_size}, wanted at most the batch, {batch_size}"
        )
    num_micro = num_micro_batches(batch_size, micro_batch_size)
    if virtual_replicas > num_micro:
        raise InvalidInput(
            f"virtual_replicas: seen {virtual_replicas}, wanted at most a step's {num_micro} micro-batches"
        )
    return BatchShape(
        batch_size=batch_size, micro_batch_size=micro_batch_size, virtual_replicas=virtual_replicas
    )
