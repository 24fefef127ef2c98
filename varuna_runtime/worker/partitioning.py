"""Cuts the model of a training, with the data set's first samples as an example of its inputs."""

import os
import traceback
from collections.abc import Callable
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import NoReturn

from torch import Tensor

from varuna_runtime.partition import Example, ExampleInput, PartitionedModel, cut
from varuna_runtime.partition.seeding import preserved_random_state, seed_everything
from varuna_runtime.spec.errors import DataHangs, ModelRefused
from varuna_runtime.spec.rng import inputs_key
from varuna_runtime.worker import lifeline
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


def example_in_child(training: Training, *, within_s: float) -> Example:
    """Like `example_of`, in a process of its own, so that nothing of what the data set opens or starts stays.

    Needs a process that adopts orphans (`lifeline.adopt_orphans`), or what the child leaves lives on. Raises
    DataHangs when the data set does not give its first samples in time.
    """
    kept = lifeline.children()
    receiving, sending = Pipe(duplex=False)
    try:
        if not os.fork():
            _answer(training, sending)
        sending.close()
        if not receiving.poll(within_s):
            raise DataHangs(f"the first samples of the data set took more than {within_s:g} s to read")
        answer = receiving.recv()
    except EOFError:
        answer = "its process died"
    finally:
        receiving.close()
        lifeline.end_children(kept=kept)
    if isinstance(answer, str):
        raise ModelRefused(f"the first samples of the data set cannot be read: {answer}")
    return tuple(ExampleInput(name=name, shape=shape, dtype=dtype) for name, shape, dtype in answer)


def partition_of(
    training: Training, *, example: Callable[[Training], Example] = example_of
) -> PartitionedModel:
    """Return the segments of a training's model; see `varuna_runtime.partition.cut`."""
    model = cut(training.model, lambda: example(training), pretrained=training.pretrained)
    if training.evaluation is not None:
        model.refuse_evaluation()
    return model


def _answer(training: Training, answers: Connection) -> NoReturn:
    """Tell the inputs, or one line of why there are none; nothing unwinds into the parent's frames."""
    try:
        try:
            answers.send([(i.name, tuple(i.shape), i.dtype) for i in example_of(training)])
        except BaseException as err:  # the user's code may raise anything
            traceback.print_exc()
            answers.send(f"{type(err).__name__}: {err}".splitlines()[0])
    finally:  # also where the parent has stopped listening
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
