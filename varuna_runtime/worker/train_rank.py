"""One rank of a training generation: engine, checkpoints, drain, last word."""

from contextlib import closing
from typing import cast

from varuna_runtime.checkpoint import TcpStoreExchange
from varuna_runtime.checkpoint.exchange import KeyValueStore
from varuna_runtime.checkpoint.writer import CheckpointWriter
from varuna_runtime.partition import PartitionedModel
from varuna_runtime.spec import canonical
from varuna_runtime.spec.manifest import Ending, ending_key, manifest_key
from varuna_runtime.store import open_store
from varuna_runtime.wire.v1 import common_pb2, worker_pb2
from varuna_runtime.worker import clock
from varuna_runtime.worker.callbacks import Callbacks
from varuna_runtime.worker.engine import RankEngine
from varuna_runtime.worker.failing import fault_of
from varuna_runtime.worker.link.late import LateLink
from varuna_runtime.worker.mailbox import Mailbox
from varuna_runtime.worker.messages import told_again, told_evaluation, told_step
from varuna_runtime.worker.progress import Progress
from varuna_runtime.worker.ranks import Group, RankOrder, device_of
from varuna_runtime.worker.resuming import Resumption
from varuna_runtime.worker.saving import SavePolicy, Saver
from varuna_runtime.worker.session import LastWord
from varuna_runtime.worker.signals import Drain, EvaluationDone, StepDone, Waiting
from varuna_runtime.worker.telling import report_of
from varuna_runtime.worker.training import Training, resolve


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
        self._store = open_store(order.store_url)
        self._group = Group(order)
        self._engine = RankEngine(
            training,
            resolve(training, order.spec),
            partitioned,
            order.plan,
            self._link,
            device=self._device,
            generation=order.generation,
        )
        self._callbacks = Callbacks(training.callbacks if order.rank == 0 else ())
        self._resumption = Resumption(self._store, order.job, order.model, self._engine)
        self._saver: Saver

    def prepare(self) -> worker_pb2.PrepareReply:
        """Load the newest complete checkpoint."""
        step = self._resumption.load_newest(self._order.resume_step)
        return worker_pb2.PrepareReply(
            plan_hash=self._order.plan.hash(), endpoint=self._group.endpoint, resume_step=step
        )

    def activate(self, endpoints: list[common_pb2.Endpoint]) -> None:
        """Agree on plan and step, then join the group."""
        meeting = self._group.meet(endpoints)
        agreed = min(int(word) for word in meeting.gather("step", str(self._engine.step)))
        if agreed != self._engine.step:
            self._resumption.load_step(agreed)
        self._link.attach(self._group.join(self._device, on_silence=self._progress.peer_silent))
        self._saver = self._make_saver()

    def run(self) -> LastWord:
        """Run step by step until the end, or until all ranks agree to stop."""
        self._progress.tell(worker_pb2.WorkerProgress(active=self._active()))
        with closing(self._callbacks):
            is_drained = self._run_to_the_end()
        self._saver.settle()
        if is_drained:
            drained = common_pb2.Drained(step=self._engine.step)
            return LastWord(message=worker_pb2.WorkerProgress(drained=drained))
        digest = self._engine.weights_sha256()
        if self._order.rank == 0:
            self._keep_ending(digest)
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

    def _run_to_the_end(self) -> bool:
        """Return whether all ranks agreed to stop before it."""
        while not self._engine.is_over:
            done = self._run_next()
            self._saver.poll()
            if done.drain:
                return True
            if isinstance(done, StepDone) and done.checkpoint:
                self._saver.begin()
        return False

    def _keep_ending(self, digest: str) -> None:
        ending = Ending(generation=self._order.generation, step=self._engine.step, weights_sha256=digest)
        self._store.put(ending_key(self._order.job), canonical.dumps(ending))

    def close(self) -> None:
        """Say goodbye to the peers; rank 0 stays until the last has."""
        self._saver.close()
        self._link.close()
        self._group.leave()

    def abandon(self, err: BaseException) -> None:
        """Tell the peers."""
        self._link.abort(fault_of(err, self._order.rank))

    def _run_next(self) -> StepDone | EvaluationDone:
        began_s = clock.now_s()
        self._progress.step_begins(self._engine.step)
        if self._order.rank == 0 and self._saver.is_due:
            self._engine.request(checkpoint=True)
        while not isinstance(signal := self._engine.advance(), StepDone | EvaluationDone):
            if self._mailbox.is_draining:
                self._engine.request(drain=Drain.DURABLE)
            if isinstance(signal, Waiting):
                self._link.wait()
            elif self._engine.is_evaluating:
                self._progress.step_begins(self._engine.step)  # it may be long: each part counts by itself
        self._tell(signal, clock.now_s() - began_s)
        return signal

    def _tell(self, done: StepDone | EvaluationDone, took_s: float) -> None:
        if isinstance(done, StepDone):
            self._progress.step_ends(told_step(done, took_s, self._engine.busy))
        elif done.record is not None:  # from every rank, so that no node tells a later step before it
            evaluation = told_evaluation(done.record, took_s)
            self._progress.tell(worker_pb2.WorkerProgress(evaluation=evaluation))
        report = report_of(done, took_s=took_s)
        if report is not None:
            self._callbacks.tell(report)

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
            last_step=self._engine.step,
            last_s=clock.now_s(),
        )
        return Saver(self._engine, writer, policy, clock=clock.now_s, on_durable=self._tell_durable)

    def _tell_durable(self, step: int) -> None:
        """One rank's word is enough: the manifest is the same for all."""
        if self._order.rank == 0:
            durable = common_pb2.Durable(step=step, manifest_key=manifest_key(self._order.job, step))
            self._progress.tell(worker_pb2.WorkerProgress(durable=durable))
