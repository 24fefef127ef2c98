"""Checkpoints of a fleet through the real writers, store and readers."""

from tests.support.fleet import Fleet
from varuna_runtime.checkpoint import MemoryExchange
from varuna_runtime.checkpoint.writer import CheckpointWriter, Durable
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.store import Store
from varuna_runtime.worker.engine import RankEngine
from varuna_runtime.worker.resuming import Resumption


def save(fleet: Fleet, store: Store, *, generation: int = 1) -> None:
    """Make the fleet's step durable, with one writer a rank."""
    exchange = MemoryExchange()
    writers = [
        CheckpointWriter(
            store,
            job="job",
            generation=generation,
            rank=rank,
            layout=fleet.plan.layout,
            model=record_of(fleet),
            exchange=exchange,
            clock=lambda: 0.0,
        )
        for rank in range(len(fleet.engines))
    ]
    for writer, engine in zip(writers, fleet.engines, strict=True):
        state = engine.state()
        assert writer.begin(engine.step, state.segments, state.trainer)
    for writer in writers:
        assert writer.flush(30.0)
        (news,) = writer.poll()
        assert isinstance(news, Durable), news
        writer.close()


def load(fleet: Fleet, store: Store) -> list[int]:
    """Load the newest durable step on every rank and return what each found."""
    return [resumption(fleet, store, engine).load_newest(None) for engine in fleet.engines]


def resumption(fleet: Fleet, store: Store, engine: RankEngine) -> Resumption:
    """What one rank starts from."""
    return Resumption(store, "job", record_of(fleet), engine)


def record_of(fleet: Fleet) -> ModelRecord:
    """The model's record as a manager keeps it."""
    return ModelRecord(
        segments=fleet.model.record_segments,
        tied=fleet.model.tied,
        num_samples=None,
        num_steps=3,
        aliases=fleet.model.aliases,
    )
