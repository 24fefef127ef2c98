"""What a stepping engine says each time it is advanced, and how its parts wait for messages."""

from collections.abc import Callable, Generator
from dataclasses import dataclass
from enum import IntEnum
from typing import TypeVar

from torch import Tensor

from varuna_runtime.spec.manifest import EvaluationRecord, LossRecord
from varuna_runtime.worker.link import Link

T = TypeVar("T")


class Drain(IntEnum):
    """Whether ranks stop, and where their state is to be then; of several wishes the greatest counts."""

    NONE = 0
    KEPT = 1  # in copies, in the memory of nodes
    DURABLE = 2


@dataclass(frozen=True, slots=True)
class Progressed:
    """One op or one part of the step's end was done."""


@dataclass(frozen=True, slots=True)
class Waiting:
    """Nothing can be done before a message arrives."""

    on: str


@dataclass(frozen=True, slots=True, kw_only=True)
class StepDone:
    """A committed step; everything but the flags' cause is equal on every rank."""

    record: LossRecord
    loss: float  # mean over the step's weight
    grad_norm: float  # before clipping; infinite if the step was skipped
    learning_rate: float  # of the first parameter group, used by this step
    drain: Drain  # some rank asked to stop after this step
    checkpoint: bool  # some rank asked to save this step
    loss_scale: float = 1.0  # used by this step; other than 1 under fp16 only
    keep: bool = False  # every rank wanted a copy of this step
    recoverable: int = -1  # committed steps that every rank's copies are complete for; -1: none


@dataclass(frozen=True, slots=True, kw_only=True)
class EvaluationDone:
    """An evaluation ended, equal on every rank."""

    record: EvaluationRecord | None  # None: abandoned for the drain, to be made again
    drain: Drain  # some rank asked to stop


Signal = Progressed | Waiting
Stepping = Generator[Signal, None, T]

PROGRESSED = Progressed()


def receive(link: Link, source: int, tag: str) -> Stepping[tuple[Tensor, ...]]:
    """Yield Waiting until the next message of (source, tag) is here, and return it."""
    while (message := link.poll(source, tag)) is None:
        yield Waiting(f"{tag} from rank {source}")
    return message


def run(work: Stepping[T], wait: Callable[[], None]) -> T:
    """Run stepping work to its end, blocking in `wait` whenever it must."""
    while True:
        try:
            signal = next(work)
        except StopIteration as end:
            value: T = end.value
            return value
        if isinstance(signal, Waiting):
            wait()
