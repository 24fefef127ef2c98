"""One rank of a training generation: engine, checkpoints, drain, last word."""

from collections.abc import Callable
from contextlib import closing
from functools import partial
from typing import cast

from varuna_runtime.checkpoint import TcpStoreExchange
from varuna_runtime.checkpoint.exchange import KeyValueStore
from varuna_runtime.checkpoint.pacing import PRIOR_MTBF_S
from varuna_runtime.checkpoint.writer import CheckpointWriter, SaveFailed
from varuna_runtime.partition import PartitionedModel
from varuna_runtime.spec import canonical
from varuna_runtime.spec.copies import Version
from varuna_runtime.spec.manifest import Ending, ending_key, manifest_key
from varuna_runtime.spec.reports import Report
from varuna_runtime.store import open_store
from varuna_runtime.wire.v1 import common_pb2, worker_pb2
from varuna_runtime.worker import clock
from varuna_runtime.worker.agreeing import agreed_version
from varuna_runtime.worker.callbacks import Callbacks
from varuna_runtime.worker.committing import Committing
from varuna_runtime.worker.copying import Copying
from varuna_runtime.worker.engine import RankEngine
from varuna_runtime.worker.failing import fault_of
from varuna_runtime.worker.link.late import LateLink
from varuna_runtime.worker.mailbox import Mailbox
from varuna_runtime.worker.messages import told_again, told_evaluation, told_step, told_version
from varuna_runtime.worker.patience import patiently
from varuna_runtime.worker.process import shards_folder
from varuna_runtime.worker.progress import Progress
from varuna_runtime.worker.ranks import Group, RankOrder, device_of
from varuna_runtime.worker.resuming import Resumption
from varuna_runtime.worker.saving import SavePolicy, Saver
from varuna_runtime.worker.session import LastWord
from varuna_runtime.worker.signals import Drain, EvaluationDone, StepDone, Waiting
from varuna_runtime.worker.stage_state import needed_by
from varuna_runtime.worker.starting import LOOK_AGAIN_S, LOOK_S, Start
from varuna_runtime.worker.telling import report_of
from varuna_runtime.worker.training import Training, resolve
from varuna_runtime.worker.vaults import Vaults

_LAST_COPY_S = 1.0  # how long an ending process may go on with a copy


class TrainRank:
    """See `session.Rank`."""

    def __init__(
        self,
        order: RankOrder,
        training: Training,
        partitioned: PartitionedModel,
        mailbox: Mailbox,
        progress: Progress,
    ) -> None:
        self._order = order
        self._mailbox = mailbox
        self._progress = progress
        self._device = device_of(order.plan.placement[order.rank].index)
        self._link = LateLink(order.rank)
        self._store = open_store(order.store_url, near=shards_folder())
        self._group = Group(order)
        self._make_engine = partial(
            RankEngine,
            training,
            resolve(training, order.spec),
            partitioned,
            order.plan,
            self._link,
            device=self._device,
            generation=order.generation,
        )
        self._partitioned = partitioned
        self._engine: RankEngine
        self._vaults = Vaults(order)
        self._callbacks = Callbacks(training.callbacks if order.rank == 0 else ())
        self._start: Start
        self._saver: Saver
        self._copying: Copying
        self._committing: Committing
        self._telling_s = 0.0  # of the step under way
        self._last_look: Callable[[], object] = lambda: None

    def prepare(self) -> worker_pb2.PrepareReply:
        """Load the newest version there is: out of memory where that is as new as what is durable."""
        stage = self._order.plan.stages[self._order.plan.layout.stage_of(self._order.rank)]
        copies = self._vaults.copies(needed_by(self._partitioned, range(stage.first, stage.last)))
        copies.look(LOOK_S)
        copies.look_again(LOOK_AGAIN_S, self._order.resume_step or 0)
        is_blank = bool(copies.versions or self._order.resume_step)  # initial weights would be overwritten
        materialise = self._partitioned.materialise_blank if is_blank else None
        self._engine = self._make_engine(materialise=materialise)
        self._start = Start(self._engine, self._stored(), copies, resume_step=self._order.resume_step)
        self._start.load_newest()
        if is_blank and not self._start.loaded.step:
            self._begin_anew()
        return worker_pb2.PrepareReply(
            plan_hash=self._order.plan.hash(),
            endpoint=self._group.endpoint,
            resume_step=self._start.loaded.step,
            loaded=told_version(self._start.loaded),
            loadable=[told_version(version) for version in self._start.loadable],
        )

    def activate(self, request: worker_pb2.ActivateRequest) -> None:
        """Agree on plan and version, join the group, and keep what the generation starts from."""
        meeting = self._group.meet(list(request.endpoints))
        self._load(agreed_version(request, meeting, self._start.loadable))
        self._vaults.stop_reading()
        keeper = self._vaults.keeper(self._engine, on_made=self._link.wake)
        rank, layout = self._order.rank, self._order.plan.layout
        # Until these copies count, the step is nowhere whole: of a share there is but one.
        is_held = rank == 0 if self._engine.is_shared else layout.stage_of(rank) == 0
        self._mailbox.before_exit = self._wait_copied = partial(keeper.wait_copied, _LAST_COPY_S)
        self._committing = Committing(self._link, layout.world_size, keeper, clock=clock.now_s)
        self._copying = Copying(
            self._engine,
            keeper,
            is_held=is_held,
            before_vote=self._look_whether_told,
            on_kept=self._tell_kept,
            clock=clock.now_s,
        )
        self._link.attach(self._group.join(self._device, on_silence=self._progress.peer_silent))
        self._last_look = self._committing.last_look
        self._saver = self._make_saver()

    def _load(self, version: Version) -> None:
        if version == self._start.loaded:
            return
        if version.step:
            self._start.load(version)
        else:  # though this rank could load more
            self._begin_anew()

    def _begin_anew(self) -> None:
        self._engine = self._make_engine()
        self._start.begin_anew(self._engine, self._stored())

    def _stored(self) -> Resumption:
        return Resumption(self._store, self._order.job, self._order.model, self._engine)

    def run(self) -> LastWord:
        """Run step by step until the end, or until all ranks agree to stop."""
        self._progress.tell(worker_pb2.WorkerProgress(active=self._active()))
        with closing(self._callbacks):
            drain = self._run_to_the_end()
            self._tell_last()
        if drain:
            is_kept = self._copying.stops_in_memory(drain, lambda: self._mailbox.drain_wish)
            if not is_kept:
                self._settle()
            drained = common_pb2.Drained(step=self._engine.step, kept=is_kept)
            return LastWord(message=worker_pb2.WorkerProgress(drained=drained))
        self._settle()
        digest = self._engine.weights_sha256()
        if self._order.rank == 0:
            patiently(partial(self._keep_ending, digest))
        finished = common_pb2.Finished(
            step=self._engine.step, weights_sha256=digest if self._order.rank == 0 else ""
        )
        return LastWord(message=worker_pb2.WorkerProgress(finished=finished))

    def _active(self) -> worker_pb2.WorkerActive:
        active = worker_pb2.WorkerActive(step=self._engine.step)
        if self._order.rank == 0:
            active.earlier.extend(told_again(loss) for loss in self._engine.losses)
            active.evaluations.extend(told_evaluation(r) for r in self._engine.evaluations)
        return active

    def _run_to_the_end(self) -> Drain:
        """Return how all ranks agreed to stop before it, if they did."""
        while not self._engine.is_over:
            done = self._run_next()
            self._saver.poll()
            if done.drain:
                return done.drain
            if isinstance(done, StepDone) and done.checkpoint:
                self._saver.begin()
        return Drain.NONE

    def _settle(self) -> None:
        """Make the committed steps durable; while the store is away, wait: the state lives on here."""
        patiently(partial(self._saver.settle, attempts=1), self._engine.all_agree)

    def _keep_ending(self, digest: str) -> None:
        ending = Ending(generation=self._order.generation, step=self._engine.step, weights_sha256=digest)
        self._store.put(ending_key(self._order.job), canonical.dumps(ending))

    def close(self) -> None:
        """Say goodbye to the peers; rank 0 stays until the last has."""
        self._saver.close()
        self._link.close()
        self._group.leave()

    def abandon(self, err: BaseException) -> None:
        """Tell the peers, then let a copy that is being made be finished."""
        try:
            self._last_look()
        finally:
            self._link.abort(fault_of(err, self._order.rank))
            self._mailbox.before_exit()

    def _run_next(self) -> StepDone | EvaluationDone:
        began_s, self._telling_s = clock.now_s(), 0.0
        self._progress.step_begins(self._engine.step)
        if self._order.rank == 0 and self._saver.is_due:
            self._engine.request(checkpoint=True)
        while not isinstance(signal := self._engine.advance(), StepDone | EvaluationDone):
            self._engine.request(drain=self._mailbox.drain_wish)
            self._copying.look()
            self._look_whether_told()
            if isinstance(signal, Waiting):
                self._link.wait()
            elif self._engine.is_evaluating:
                self._progress.step_begins(self._engine.step)  # it may be long: each part counts by itself
        took_s = clock.now_s() - began_s - self._telling_s
        self._progress.step_ends()
        if isinstance(signal, StepDone):
            step = worker_pb2.WorkerProgress(step=told_step(signal, took_s, self._engine.busy))
            report = report_of(signal, took_s=took_s)
            self._committing.follow(
                signal, partial(self._call_back, report), then=partial(self._progress.tell, step)
            )
            self._engine.before_change(self._look_whether_told)  # after the copying is waited for
            self._copying.follow(signal)
        else:
            self._committing.tell_all()
            self._tell_evaluation(signal, took_s)
        return signal

    def _look_whether_told(self) -> None:
        """The script's callbacks, if any are called, are no part of this step."""
        looked_s = clock.now_s()
        if self._committing.look():
            self._progress.step_begins(self._engine.step)
            self._telling_s += clock.now_s() - looked_s

    def _call_back(self, report: Report | None) -> None:
        if report is not None:
            self._progress.step_ends()  # they may take long
            self._callbacks.tell(report)

    def _tell_evaluation(self, done: EvaluationDone, took_s: float) -> None:
        if done.record is not None:  # from every rank, so that no node tells a later step before it
            evaluation = told_evaluation(done.record, took_s)
            self._progress.tell(worker_pb2.WorkerProgress(evaluation=evaluation))
        self._call_back(report_of(done, took_s=took_s))

    def _tell_last(self) -> None:
        """No more steps follow that would have the last one told."""
        if self._committing.is_copied:
            self._engine.all_agree(self._wait_copied())
        self._committing.finish()

    def _make_saver(self) -> Saver:
        writer = CheckpointWriter(
            self._store,
            job=self._order.job,
            generation=self._order.generation,
            rank=self._order.rank,
            layout=self._order.plan.layout,
            model=self._order.model,
            clock=clock.now_s,
            exchange=TcpStoreExchange(cast(KeyValueStore, self._group.connect())),  # its stub knows no bytes
            keep=self._order.spec.checkpoint.keep,
        )
        policy = SavePolicy(
            interval_steps=self._order.spec.checkpoint.interval_steps,
            last_step=min(self._order.resume_step or 0, self._engine.step),
            last_s=clock.now_s(),
            mtbf_s=self._order.unmended_s or PRIOR_MTBF_S,
        )
        return Saver(
            self._engine,
            writer,
            policy,
            clock=clock.now_s,
            on_durable=self._tell_durable,
            on_failed=self._tell_save_failed,
        )

    def _tell_durable(self, step: int) -> None:
        """One rank's word is enough: the manifest is the same for all."""
        self._committing.tell_to(step)
        self._copying.is_durable(step)
        if self._order.rank == 0:
            durable = common_pb2.Durable(step=step, manifest_key=manifest_key(self._order.job, step))
            self._progress.tell(worker_pb2.WorkerProgress(durable=durable))

    def _tell_save_failed(self, news: SaveFailed) -> None:
        if self._order.rank == 0:
            failed = common_pb2.SaveFailed(step=news.step, reason=news.reason)
            self._progress.tell(worker_pb2.WorkerProgress(save_failed=failed))

    def _tell_kept(self, step: int) -> None:
        self._committing.tell_to(step)
        if self._order.rank == 0:
            self._progress.tell(worker_pb2.WorkerProgress(kept=common_pb2.Kept(step=step)))
