"""Asynchronous saves of one rank: a thread copies beside the training, another writes; never two at a time.

Rank 0 also collects the records of all ranks and puts the manifest. A save that fails is reported and
forgotten: training goes on and the previous durable step stays the newest.
"""

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import structlog
from torch import Tensor

from varuna_runtime.checkpoint.assembly import Incomplete, RankRecord, SegmentNames, assemble, segment_names
from varuna_runtime.checkpoint.exchange import RecordExchange
from varuna_runtime.checkpoint.images import Image, Images
from varuna_runtime.checkpoint.manifests import commit
from varuna_runtime.checkpoint.meeting import Meeting, Outcome
from varuna_runtime.checkpoint.retention import prune
from varuna_runtime.checkpoint.shards import ShardLabel
from varuna_runtime.checkpoint.staging import Staging, stage
from varuna_runtime.checkpoint.tensors import SegmentTensors, part_of
from varuna_runtime.spec.errors import VarunaError
from varuna_runtime.spec.layout import Layout
from varuna_runtime.spec.manifest import ShardEntry, TrainerState
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.store import Store

_log = structlog.get_logger(__name__)
_NUM_WRITERS = 2  # so that one shard is written while another is synced


@dataclass(frozen=True, slots=True, kw_only=True)
class Durable:
    """A step whose manifest exists, as this rank learnt it."""

    step: int
    stall_s: float  # how long `begin` held up training on this rank
    elapsed_s: float  # from `begin` to this rank knowing
    num_bytes: int = 0  # that this rank wrote


@dataclass(frozen=True, slots=True, kw_only=True)
class SaveFailed:
    """A step that was tried and did not become durable; training goes on."""

    step: int
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How long to wait before a save counts as failed."""

    begin_s: float = 1.0  # in `begin`, for the previous save to let go of its host memory
    collect_s: float = 300.0  # on rank 0, for the records of the other ranks
    poll_s: float = 0.02  # between two looks at the exchange


@dataclass(frozen=True, slots=True, kw_only=True)
class _Save:
    number: int
    step: int
    images: tuple[Image, ...]  # by segment
    held: tuple[SegmentNames, ...]
    trainer: TrainerState
    staging: Staging


@dataclass(frozen=True, slots=True, kw_only=True)
class _Begun:
    step: int
    at_s: float
    stall_s: float
    num_bytes: int = 0


class CheckpointWriter:
    """Writes one rank's part of each checkpoint of a generation; use it from one thread, made after any fork.

    `layout` and `rank` say which share of each segment is ours: whole tensors, balanced over the replicas.
    `exchange` must be shared by all ranks of the generation and by nobody else. Rank 0 keeps the newest
    `keep` durable steps.
    """

    def __init__(
        self,
        store: Store,
        *,
        job: str,
        generation: int,
        rank: int,
        layout: Layout,
        model: ModelRecord,
        exchange: RecordExchange,
        clock: Callable[[], float],
        keep: int = 3,
        patience: Patience | None = None,
    ) -> None:
        self._store, self._clock = store, clock
        self._job, self._generation, self._rank, self._layout = job, generation, rank, layout
        self._model, self._keep, self._patience = model, keep, patience or Patience()
        self._meeting = Meeting(exchange, world_size=layout.world_size)
        self._images = Images()
        self._reserving: threading.Thread | None = None
        self._changed = threading.Condition()  # guards everything below
        self._num_begun = 0
        self._save: _Save | None = None
        self._begun: dict[int, _Begun] = {}  # by number: saves whose outcome this rank does not know yet
        self._news: list[Durable | SaveFailed] = []
        self._is_closed = False
        self._thread = threading.Thread(target=self._serve, name=f"checkpoint-{rank}", daemon=True)
        self._thread.start()

    @property
    def busy(self) -> bool:
        """Whether `begin` could not start a save now; on rank 0, false means that the last save is settled.

        So let the ranks vote for a save only while rank 0 is not busy.
        """
        with self._changed:
            return self._save is not None

    def reserve(self, tensors: SegmentTensors) -> None:
        """Take and touch the memory of the first save ahead, in a thread; `tensors` as for `begin`.

        That costs several times what the copy does. Call it once, before the first save.
        """
        part = self._part_of(tensors)

        def run() -> None:
            for segment, held in sorted(part.items()):
                self._images.reserve(segment, held)

        self._reserving = threading.Thread(target=run, name=f"checkpoint-{self._rank}-memory", daemon=True)
        self._reserving.start()

    def begin(self, step: int, tensors: SegmentTensors, trainer: TrainerState) -> Staging | None:
        """Start to copy this rank's share; the caller changes the tensors only after the staging's `wait`.

        To be called on every rank of the generation, for the same step, with all tensors of the rank's stage
        by segment (`param:`, `buffer:` and `optim:` names). Never waits for the store: if the previous save
        still reads its host memory after a moment, this save fails on all ranks and None is returned.
        """
        number, began_s = self._num_begun, self._clock()
        self._num_begun += 1
        with self._changed:
            self._begun[number] = _Begun(step=step, at_s=began_s, stall_s=0.0)
            is_free = self._changed.wait_for(lambda: self._save is None, self._patience.begin_s)
        if not is_free:
            self._refuse(number, step, "is still writing the previous checkpoint")
            return None
        try:
            save = self._save_of(number, step, tensors, trainer)
        except (VarunaError, RuntimeError, MemoryError) as err:  # of torch: no memory on the host
            self._refuse(number, step, f"failed: {err}")
            return None
        num_bytes = sum(len(image.memory) for image in save.images)
        with self._changed:
            stall_s = self._clock() - began_s
            self._begun[number] = _Begun(step=step, at_s=began_s, stall_s=stall_s, num_bytes=num_bytes)
            self._save = save
            self._changed.notify_all()
        return save.staging

    def _save_of(self, number: int, step: int, tensors: SegmentTensors, trainer: TrainerState) -> _Save:
        if self._reserving is not None:
            self._reserving.join()
        images = tuple(
            self._images.image(self._label(step, segment), held)
            for segment, held in sorted(self._part_of(tensors).items())
        )
        held = tuple(segment_names(segment, tensors[segment]) for segment in sorted(tensors))
        pairs = [pair for image in images for pair in image.pairs]
        staging = stage(pairs, lambda: None, name=f"checkpoint-{self._rank}-stage")
        return _Save(number=number, step=step, images=images, held=held, trainer=trainer, staging=staging)

    def _part_of(self, tensors: SegmentTensors) -> dict[int, dict[str, Tensor]]:
        replica = self._layout.replica_of(self._rank)
        return part_of(tensors, replicas=self._layout.replicas, replica=replica)

    def _label(self, step: int, segment: int) -> ShardLabel:
        return ShardLabel(
            job=self._job,
            step=step,
            generation=self._generation,
            segment=segment,
            part=self._layout.replica_of(self._rank),
        )

    def poll(self) -> tuple[Durable | SaveFailed, ...]:
        """Return what became known since the last call, oldest first; never waits."""
        with self._changed:
            news = tuple(self._news)
            self._news.clear()
        return news

    def flush(self, timeout_s: float) -> bool:
        """Wait until the outcome of every begun save is known here; False when that takes longer."""
        with self._changed:
            return self._changed.wait_for(lambda: self._save is None and not self._begun, timeout_s)

    def close(self, timeout_s: float = 1.0) -> None:
        """Stop after the object being written, without flushing; a write that hangs dies with the process."""
        with self._changed:
            self._is_closed = True
            self._changed.notify_all()
        self._thread.join(timeout_s)

    def _serve(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._save is not None or self._is_closed, self._idle_s())
                save = self._save
                if self._is_closed:
                    return
            try:
                self._turn(save)
            except Exception as err:  # the thread's boundary: whatever it was becomes the save's outcome
                self._fail(save, err)
            with self._changed:
                self._save = None if self._save is save else self._save
                self._changed.notify_all()

    def _idle_s(self) -> float | None:
        return self._patience.poll_s if self._begun else None

    def _turn(self, save: _Save | None) -> None:
        if save is None:
            for outcome in self._meeting.outcomes():
                self._learn(outcome)
            return
        self._meeting.report(save.number, self._write(save))
        if self._rank == 0:
            self._settle(save)

    def _write(self, save: _Save) -> RankRecord:
        """Put all shards and compute their checksums, a few at a time."""
        save.staging.wait()
        with ThreadPoolExecutor(_NUM_WRITERS, thread_name_prefix=f"checkpoint-{self._rank}-write") as pool:
            puts = [pool.submit(self._store.put, image.key, image.memory) for image in save.images]
            entries = tuple(image.entry() for image in save.images)
        for put in puts:
            put.result()
        return self._record(save.step, held=save.held, entries=entries)

    def _settle(self, save: _Save) -> None:
        """On rank 0: wait for all records, commit, tell everybody, then tidy up."""
        failure = self._commit(save)
        outcome = Outcome(save=save.number, failure=failure)
        self._meeting.announce(outcome)
        self._learn(outcome)
        self._prune(save.step)

    def _commit(self, save: _Save) -> str:
        """Return why the step is not durable, or nothing."""
        records = self._collect(save.number)
        if isinstance(records, Incomplete):
            return records.reason
        made = assemble(
            records, job=self._job, generation=self._generation, model=self._model, trainer=save.trainer
        )
        if isinstance(made, Incomplete):
            return made.reason
        commit(self._store, made)
        return ""

    def _collect(self, number: int) -> tuple[RankRecord, ...] | Incomplete:
        deadline_s = self._clock() + self._patience.collect_s
        records: dict[int, RankRecord] = {}
        while missing := [rank for rank in range(self._layout.world_size) if rank not in records]:
            found = self._meeting.records(number, missing)
            if failed := [record for record in found.values() if record.error]:
                return Incomplete(reason=f"rank {failed[0].rank} {failed[0].error}")
            records |= found
            if not found and (self._clock() > deadline_s or self._is_closed):
                return Incomplete(reason=f"no record of ranks {missing} in time")
            if not found:
                self._pause()
        return tuple(records[rank] for rank in sorted(records))

    def _pause(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_closed, self._patience.poll_s)

    def _prune(self, step: int) -> None:
        try:
            prune(self._store, self._job, keep=self._keep, generation=self._generation, up_to=step)
        except VarunaError as err:  # costs space only; the next save tries again
            _log.warning("checkpoint not pruned", job=self._job, step=step, reason=str(err))

    def _fail(self, save: _Save | None, err: Exception) -> None:
        reason = str(err) if isinstance(err, VarunaError) else f"{type(err).__name__}: {err}"
        if save is not None:
            self._refuse(save.number, save.step, f"failed: {reason}")
            return
        with self._changed:
            lost = sorted(self._begun)
        for number in lost:
            self._learn(Outcome(save=number, failure=reason))

    def _refuse(self, number: int, step: int, error: str) -> None:
        """Make the save fail on all ranks because of this one; here only, when nobody can be told."""
        outcome = Outcome(save=number, failure=f"rank {self._rank} {error}")
        try:
            if self._rank != 0:
                self._meeting.report(number, self._record(step, error=error))
                return
            self._meeting.announce(outcome)
            self._prune(step)
        except VarunaError as err:
            outcome = Outcome(save=number, failure=f"{outcome.failure}; {err}")
        self._learn(outcome)

    def _learn(self, outcome: Outcome) -> None:
        with self._changed:
            begun = self._begun.pop(outcome.save, None)
            if begun is None:
                return
            elapsed_s = self._clock() - begun.at_s
            self._news.append(
                SaveFailed(step=begun.step, reason=outcome.failure)
                if outcome.failure
                else Durable(
                    step=begun.step, stall_s=begun.stall_s, elapsed_s=elapsed_s, num_bytes=begun.num_bytes
                )
            )
            self._changed.notify_all()

    def _record(
        self,
        step: int,
        *,
        held: tuple[SegmentNames, ...] = (),
        entries: tuple[ShardEntry, ...] = (),
        error: str = "",
    ) -> RankRecord:
        return RankRecord(
            step=step, generation=self._generation, rank=self._rank, held=held, shards=entries, error=error
        )
