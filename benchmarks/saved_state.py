"""What the checkpoint cases save and load: the state of a stage, and our writer around it."""

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

import torch
from torch import Tensor

from benchmarks.joined import Joined
from varuna_runtime.checkpoint import TcpStoreExchange
from varuna_runtime.checkpoint.exchange import KeyValueStore
from varuna_runtime.checkpoint.staging import Staging
from varuna_runtime.checkpoint.writer import CheckpointWriter, Durable
from varuna_runtime.spec.layout import Layout
from varuna_runtime.spec.manifest import TrainerState
from varuna_runtime.spec.model import ModelRecord, SegmentRecord, TensorRecord
from varuna_runtime.store import Store

JOB = "benchmark"
_LIMIT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much each rank holds: parameters of `width` squared, each with two moments of Adam."""

    segments: int  # of a rank
    params: int  # of a segment
    width: int = 1024

    @property
    def num_bytes(self) -> int:
        """Bytes of a rank."""
        return self.segments * self.params * 3 * self.width * self.width * 4


def model_of(size: Size, num_ranks: int) -> ModelRecord:
    """Return the record of a model with a stage on each rank."""
    shape, params = (size.width, size.width), range(size.params)
    return ModelRecord(
        segments=tuple(
            SegmentRecord(
                index=index,
                name=str(index),
                tensors=tuple(
                    TensorRecord(name=f"{index}.{i}", shape=shape, dtype="float32") for i in params
                ),
                param_bytes=0,
            )
            for index in range(size.segments * num_ranks)
        ),
        tied=(),
        num_samples=None,
        num_steps=1,
    )


def filled(size: Size, rank: int) -> dict[int, dict[str, Tensor]]:
    """Return random values of a rank's tensors, by segment."""
    generator = torch.Generator().manual_seed(rank)
    shape = (size.width, size.width)
    return {
        segment: {
            name: torch.rand(shape, generator=generator)
            for i in range(size.params)
            for name in (
                f"param:{segment}.{i}",
                f"optim:{segment}.{i}:exp_avg",
                f"optim:{segment}.{i}:exp_avg_sq",
            )
        }
        for segment in range(rank * size.segments, (rank + 1) * size.segments)
    }


def flat(tensors: Mapping[int, Mapping[str, Tensor]]) -> dict[str, Tensor]:
    """Return all tensors by name."""
    return {name: tensor for held in tensors.values() for name, tensor in held.items()}


class Saves:
    """Our saves of one rank, as a training makes them; steps are numbered from 1."""

    def __init__(self, joined: Joined, store: Store, size: Size) -> None:
        rank, num_ranks = joined.place.rank, joined.place.size
        self.step = 0
        self._writer = CheckpointWriter(
            store,
            job=JOB,
            generation=1,
            rank=rank,
            layout=Layout(stages=num_ranks, replicas=1),
            model=model_of(size, num_ranks),
            exchange=TcpStoreExchange(cast(KeyValueStore, joined.store)),  # its stub knows no bytes
            clock=time.perf_counter,
            keep=1000,  # what is deleted when is not a part of a save
        )

    def begin(self, tensors: Mapping[int, Mapping[str, Tensor]]) -> Staging:
        """Begin to save the next step."""
        self.step += 1
        trainer = TrainerState(step=self.step, optimizer_groups="", scheduler="", stream_cursor="", losses=())
        staging = self._writer.begin(self.step, tensors, trainer)
        assert staging is not None, self._writer.poll()
        return staging

    @property
    def is_durable(self) -> bool:
        """Whether every save begun is durable; raises when one failed."""
        if not self._writer.flush(0.0):
            return False
        outcomes = self._writer.poll()
        assert all(isinstance(outcome, Durable) for outcome in outcomes), outcomes
        return True

    def finish(self) -> None:
        """Wait until the step is durable."""
        assert self._writer.flush(_LIMIT_S)
        assert self.is_durable

    def save(self, tensors: Mapping[int, Mapping[str, Tensor]]) -> None:
        """Save, all of it."""
        self.begin(tensors).wait()
        self.finish()
