"""What one plain process makes of a training: the oracle, fed with the weights, keys and batches of a job."""

from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from tests.support.fleet import Snapshot
from tests.support.oracle import Oracle, untie
from varuna_runtime.partition import PartitionedModel
from varuna_runtime.spec.job import Precision
from varuna_runtime.spec.layout import BatchShape
from varuna_runtime.spec.rng import forward_key, inputs_key
from varuna_runtime.worker.data import SampleSource
from varuna_runtime.worker.training import Training

torch.set_num_threads(1)  # as every worker does: bits depend on the number of threads

AUTOCAST = {Precision.FP32: None, Precision.BF16: torch.bfloat16, Precision.FP16: torch.float16}


@dataclass(frozen=True, slots=True)
class Truth:
    """Losses and every tensor after some steps, named as a snapshot names them."""

    losses: tuple[float, ...]
    tensors: dict[str, Tensor]


@dataclass(frozen=True, slots=True)
class Example:
    """A training, and what the oracle has to be told about its model: nothing of it is read from a plan."""

    training: Callable[..., Training]
    ends: Mapping[str, int]  # module whose end begins a segment -> that segment
    copies: Mapping[str, str] = field(default_factory=dict)  # tied uses: later name -> first name
    names: Mapping[str, str] = field(default_factory=dict)  # other name of a parameter -> the job's name


class Chain(nn.Sequential):
    """A sequence whose parts take a tuple apart into arguments, as documented for explicit cuts."""

    def forward(self, *values: Any) -> Any:
        for part in self:
            values = part(*values)
            values = values if isinstance(values, tuple) else (values,)
        return values[0]


def oracle_of(
    training: Training,
    example: Example,
    cut: PartitionedModel,
    batch: BatchShape,
    *,
    precision: Precision = Precision.FP32,
    **changes: Any,
) -> Oracle:
    """Return the oracle at step 0, with the initial weights of the job."""
    model = training.model()
    assert isinstance(model, nn.Module)
    if isinstance(model, nn.Sequential):
        model = Chain(OrderedDict(model.named_children()))
    untie(model, example.copies)
    initial = cut.initial_state(seed=training.seed)
    with torch.no_grad():
        for name, tensor in model.state_dict().items():
            tensor.copy_(initial[example.copies.get(name, example.names.get(name, name))])
    seed = training.seed
    settings: dict[str, Any] = {
        "model": model,
        "loss": training.loss,
        "optimizer": training.optimizer,
        "keys": lambda step, micro, segment: forward_key(
            seed=seed, step=step, micro_batch=micro, segment=segment
        ),
        "virtual_replicas": batch.virtual_replicas,
        "ends": example.ends,
        "copies": example.copies,
        "names": example.names,
        "order": [t.name for s in cut.record_segments for t in s.tensors],
        "clip": training.clip_grad_norm,
        "scheduler": training.scheduler,
        "autocast": AUTOCAST[precision],
        "scale": 2.0**16 if precision is Precision.FP16 else 1.0,
    }
    if isinstance(training.dataset[0], dict):
        settings["inputs"] = lambda batch: batch
    if training.inputs is not None:
        settings |= {
            "inputs": training.inputs,
            "input_keys": lambda step, micro: inputs_key(seed=seed, step=step, micro_batch=micro),
        }
    return Oracle(**(settings | changes))


def run_oracle(oracle: Oracle, training: Training, batch: BatchShape, num_steps: int) -> Truth:
    """Train and return the outcome; a training of epochs may end with a short step."""
    source = SampleSource(
        training.dataset,
        collate=training.collate,
        seed=training.seed,
        shuffle=training.shuffle,
        batch_size=batch.batch_size,
        total_samples=None,
    )
    num_micro = -(-batch.batch_size // batch.micro_batch_size)
    losses = [
        oracle.train_step(
            step, [source.micro_batch(step, i, batch.micro_batch_size) for i in range(num_micro)]
        )
        for step in range(num_steps)
    ]
    return Truth(tuple(losses), tensors_of(oracle))


def truth_of(
    example: Example,
    training: Training,
    cut: PartitionedModel,
    batch: BatchShape,
    num_steps: int,
    **changes: Any,
) -> Truth:
    """Return the outcome of a training from its start."""
    return run_oracle(oracle_of(training, example, cut, batch, **changes), training, batch, num_steps)


def tensors_of(oracle: Oracle) -> dict[str, Tensor]:
    """Return weights, buffers and optimizer state; tied copies are left out."""
    named, saved = oracle.named(), oracle.model.state_dict()
    found = {f"param:{n}": p.detach().clone() for n, p in named.items() if n not in oracle.copies}
    found |= {f"buffer:{n}": b.clone() for n, b in oracle.model.named_buffers() if n in saved}
    for name, parameter in named.items():
        for key, value in oracle.made.state.get(parameter, {}).items():
            if isinstance(value, Tensor):
                found[f"optim:{name}:{key}"] = value.detach().clone()
    return found


def differences(ran: Snapshot, truth: Truth) -> list[str]:
    """Return one line for each thing that is not bit for bit the same."""
    found = difference_of([step.loss for step in ran.steps], ran.tensors, truth)
    return missing_from(ran.tensors, truth) + found


def missing_from(tensors: Mapping[str, Tensor], truth: Truth) -> list[str]:
    """Return one line for each tensor of the plain loop that is not there."""
    return [f"nobody holds {name}" for name in sorted(truth.tensors.keys() - tensors.keys())]


def difference_of(losses: Sequence[float], tensors: Mapping[str, Tensor], truth: Truth) -> list[str]:
    """Like `differences`, for ranks that hold a part of the tensors."""
    found = [] if tuple(losses) == truth.losses else [f"losses {losses} are not {truth.losses}"]
    for name, tensor in sorted(tensors.items()):
        wanted = truth.tensors.get(name)
        if wanted is None:
            found.append(f"{name} is nowhere in the plain loop")
        elif tensor.shape != wanted.shape or tensor.dtype != wanted.dtype:
            found.append(f"{name}: {tensor.shape} {tensor.dtype} is not {wanted.shape} {wanted.dtype}")
        elif not tensor.equal(wanted):
            found.append(f"{name}: off by {(tensor.double() - wanted.double()).abs().max():.2e}")
    return found
