"""Cuts the model of a training, with the data set's first samples as an example of its inputs."""

import json
import os
import traceback
from collections.abc import Callable
from typing import Any

from torch import Tensor

from varuna_runtime.partition import Example, ExampleInput, PartitionedModel, cut
from varuna_runtime.partition.seeding import preserved_random_state, seed_everything
from varuna_runtime.spec.errors import ModelRefused
from varuna_runtime.spec.rng import inputs_key
from varuna_runtime.worker.data import SampleSource
from varuna_runtime.worker.training import Training

_ROWS = 2  # of an example; one row would pass for a size that is always 1


def example_of(training: Training) -> Example:
    """Return what the model is called with, from the first samples of the data set."""
    with preserved_random_state():
        try:
            return _example(training, _ROWS)
        except Exception:  # samples of different sizes, say, which are only meant to come one by one
            if training.batch_size > 1:
                raise
            return _example(training, 1)


def example_in_child(training: Training) -> Example:
    """Like `example_of`, in a process of its own: what the data set opens then is not inherited by forks."""
    receiving, sending = os.pipe()
    pid = os.fork()
    if not pid:
        os.close(receiving)
        _answer(training, sending)
    os.close(sending)
    with os.fdopen(receiving, "rb") as answers:
        text = answers.read()
    os.waitpid(pid, 0)
    answer: dict[str, Any] = json.loads(text or '{"error": "its process died"}')
    if "error" in answer:
        raise ModelRefused(f"the first samples of the data set cannot be read: {answer['error']}")
    return tuple(
        ExampleInput(name=name, shape=tuple(shape), dtype=dtype) for name, shape, dtype in answer["inputs"]
    )


def partition_of(
    training: Training, *, example: Callable[[Training], Example] = example_of
) -> PartitionedModel:
    """Return the segments of a training's model; see `varuna_runtime.partition.cut`."""
    model = cut(training.model, lambda: example(training), pretrained=training.pretrained)
    if training.evaluation is not None:
        model.refuse_evaluation()
    return model


def _answer(training: Training, sending: int) -> None:
    try:
        inputs = [(i.name, i.shape, i.dtype) for i in example_of(training)]
        text = json.dumps({"inputs": inputs})
    except BaseException as err:  # nothing may unwind into the parent's frames
        traceback.print_exc()
        text = json.dumps({"error": f"{type(err).__name__}: {err}".splitlines()[0]})
    os.write(sending, text.encode())
    os._exit(0)


def _example(training: Training, rows: int) -> Example:
    source = SampleSource(
        training.dataset,
        collate=training.collate,
        seed=training.seed,
        shuffle=False,
        batch_size=rows,
        total_samples=None,
    )
    batch = source.micro_batch(0, 0, rows)
    seed_everything(inputs_key(seed=training.seed, step=0, micro_batch=0))
    named = training.named_inputs(batch)
    if named:
        return tuple(_input(value, name) for name, value in named.items())
    return tuple(_input(value, None) for value in training.model_inputs(batch))


def _input(value: Tensor, name: str | None) -> ExampleInput:
    dtype = str(value.dtype).removeprefix("torch.")
    return ExampleInput(name=name, shape=tuple(value.shape), dtype=dtype)
