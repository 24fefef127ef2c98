"""Small models, states and saves for checkpoint tests."""

import threading
import time
from collections.abc import Iterable, Mapping

import torch
from obstore.store import MemoryStore
from torch import Tensor

from varuna_runtime.checkpoint.exchange import MemoryExchange, RecordExchange
from varuna_runtime.checkpoint.writer import CheckpointWriter, Durable, Patience, SaveFailed
from varuna_runtime.spec.layout import Layout
from varuna_runtime.spec.manifest import LossRecord, TrainerState
from varuna_runtime.spec.model import ModelRecord, SegmentRecord, TensorRecord
from varuna_runtime.store import Store
from varuna_runtime.store.objects import ObjectStore

SHAPES = ((4, 3), (3,), (2, 2, 2), ())
State = dict[int, dict[str, Tensor]]


def model_record(num_segments: int = 2) -> ModelRecord:
    """A model whose segments hold a weight of each shape and one buffer."""
    return ModelRecord(
        segments=tuple(_segment(index) for index in range(num_segments)),
        tied=(),
        num_samples=None,
        num_steps=100,
    )


def _segment(index: int) -> SegmentRecord:
    params = tuple(
        TensorRecord(name=f"{index}.w{i}", shape=shape, dtype="float32") for i, shape in enumerate(SHAPES)
    )
    buffer = TensorRecord(name=f"{index}.count", shape=(), dtype="int64", is_buffer=True)
    return SegmentRecord(index=index, name=str(index), tensors=(*params, buffer), param_bytes=0)


def state(model: ModelRecord, seed: int) -> State:
    """Values of all tensors and of an Adam-like optimizer."""
    generator = torch.Generator().manual_seed(seed)
    tensors: State = {}
    for segment in model.segments:
        held = tensors.setdefault(segment.index, {})
        for record in segment.tensors:
            if record.is_buffer:
                held[f"buffer:{record.name}"] = torch.tensor(seed)
                continue
            held[f"param:{record.name}"] = torch.randn(record.shape, generator=generator)
            held[f"optim:{record.name}:exp_avg"] = torch.randn(record.shape, generator=generator).bfloat16()
            held[f"optim:{record.name}:step"] = torch.tensor(float(seed))
    return tensors


def trainer_state(step: int) -> TrainerState:
    """What moves with the weights."""
    return TrainerState(
        step=step,
        optimizer_groups='[{"lr":0.1}]',
        scheduler="",
        stream_cursor="",
        losses=(LossRecord(step=step - 1, loss_hex=(0.1 * step).hex(), weight=8.0, samples=8),),
    )


def stage_segments(layout: Layout, rank: int, num_segments: int) -> range:
    """Contiguous segments of a rank's stage."""
    stage = layout.stage_of(rank)
    return range(stage * num_segments // layout.stages, (stage + 1) * num_segments // layout.stages)


def equal(left: Mapping[int, Mapping[str, Tensor]], right: Mapping[int, Mapping[str, Tensor]]) -> bool:
    """Bit equality of two states."""
    return left.keys() == right.keys() and all(
        left[i].keys() == right[i].keys()
        and all(
            left[i][n].dtype == right[i][n].dtype and torch.equal(left[i][n], right[i][n]) for n in left[i]
        )
        for i in left
    )


class Ranks:
    """All writers of a generation, as threads of this process."""

    def __init__(
        self,
        stores: Store | Iterable[Store],
        *,
        layout: Layout,
        model: ModelRecord,
        generation: int = 1,
        job: str = "job",
        keep: int = 3,
        exchange: RecordExchange | None = None,
        patience: Patience | None = None,
    ) -> None:
        self.layout, self.model = layout, model
        shared = exchange or MemoryExchange()
        each = list(stores) if isinstance(stores, Iterable) else [stores] * layout.world_size
        self.writers = [
            CheckpointWriter(
                store,
                job=job,
                generation=generation,
                rank=rank,
                layout=layout,
                model=model,
                exchange=shared,
                clock=time.monotonic,
                keep=keep,
                patience=patience or Patience(begin_s=5.0, collect_s=30.0, poll_s=0.001),
            )
            for rank, store in enumerate(each)
        ]

    def begin(self, step: int, values: State) -> list[bool]:
        """Begin the save on every rank."""
        return [self.begin_on(rank, step, values) for rank in range(self.layout.world_size)]

    def begin_on(self, rank: int, step: int, values: State) -> bool:
        """Begin the save on one rank."""
        segments = stage_segments(self.layout, rank, len(self.model.segments))
        staging = self.writers[rank].begin(step, {i: values[i] for i in segments}, trainer_state(step))
        return staging is not None and staging.wait(60.0)

    def settle(self) -> list[tuple[Durable | SaveFailed, ...]]:
        """Wait for all outcomes and return each rank's."""
        assert all(writer.flush(30.0) for writer in self.writers)
        return [writer.poll() for writer in self.writers]

    def save(self, step: int, values: State) -> bool:
        """Save one step and return whether it is durable everywhere."""
        self.begin(step, values)
        outcomes = [outcome for rank in self.settle() for outcome in rank]
        return all(isinstance(outcome, Durable) and outcome.step == step for outcome in outcomes)

    def close(self, timeout_s: float = 10.0) -> None:
        """End the threads."""
        for writer in self.writers:
            writer.close(timeout_s)


def saved(
    store: Store, step: int, *, seed: int | None = None, generation: int = 1, job: str = "job"
) -> State:
    """Make one step durable with a single rank and return what was saved."""
    model = model_record()
    values = state(model, step if seed is None else seed)
    layout = Layout(stages=1, replicas=1)
    ranks = Ranks(store, layout=layout, model=model, generation=generation, job=job, keep=1000)
    assert ranks.save(step, values)
    ranks.close()
    return values


class GatedStore(ObjectStore):
    """A store in memory whose puts wait until the gate is open."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.gate = threading.Event()
        self.is_reached = threading.Event()

    def put(self, key: str, data: bytes | memoryview) -> None:
        """Wait, then put."""
        self.is_reached.set()
        assert self.gate.wait(60.0)
        super().put(key, data)
