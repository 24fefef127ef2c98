"""One rank of a training as a stepping object: it runs ready ops and ends each step like all other ranks.

It never blocks: whoever drives it decides when to wait for messages.
"""

import math
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from varuna_runtime.partition import PartitionedModel
from varuna_runtime.spec.errors import StepDiverged
from varuna_runtime.spec.job import ReduceDtype
from varuna_runtime.spec.layout import Plan
from varuna_runtime.spec.manifest import EvaluationRecord, LossRecord, TrainerState
from varuna_runtime.spec.schedule import Op
from varuna_runtime.worker import determinism
from varuna_runtime.worker.agreement import Agreement, Ballot, Decision, Totals
from varuna_runtime.worker.build import Materialise, build_stage
from varuna_runtime.worker.data import SampleSource
from varuna_runtime.worker.evaluating import Evaluations
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.norm import clip_coefficient
from varuna_runtime.worker.pipeline import Pipeline
from varuna_runtime.worker.reduce import Team
from varuna_runtime.worker.scaling import LossScale
from varuna_runtime.worker.shares import offload_of
from varuna_runtime.worker.signals import Drain, EvaluationDone, Progressed, StepDone, Stepping, Waiting, run
from varuna_runtime.worker.stage_state import StageState
from varuna_runtime.worker.step_gradients import StepGradients
from varuna_runtime.worker.step_share import StepShare, step_share
from varuna_runtime.worker.stopwatch import Busy
from varuna_runtime.worker.ties import tie_exchange
from varuna_runtime.worker.training import ResolvedTraining, Training
from varuna_runtime.worker.weights import segment_digest

KEPT_LOSSES = 512  # in every checkpoint; bounds what a pool may lose of the record while no manager listens
_WIRE_DTYPES = {ReduceDtype.FP32: None, ReduceDtype.BF16: torch.bfloat16}
StateTensors = Mapping[int, Mapping[str, Tensor]]  # by segment, then `param:`, `buffer:` or `optim:` name


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineState:
    """What a checkpoint holds of one rank; live tensors, valid until the next step ends."""

    segments: dict[int, dict[str, Tensor]]
    trainer: TrainerState


@dataclass(frozen=True, slots=True, kw_only=True)
class Keeping:
    """What a rank says of its copies when it votes."""

    wants: bool = False  # another one now
    kept: int = -1  # the newest step they are complete for; -1: none
    can_drain: Drain = Drain.DURABLE  # the least kind of drain that saves what this rank holds


class RankEngine:
    """Trains one stage of one replica."""

    def __init__(
        self,
        training: Training,
        settings: ResolvedTraining,
        model: PartitionedModel,
        plan: Plan,
        link: Link,
        *,
        device: torch.device | None = None,
        generation: int = 0,
        materialise: Materialise | None = None,
    ) -> None:
        """Build the stage of `link.rank` with initial weights, or as `materialise` makes them for `load`."""
        layout = plan.layout
        self._settings, self._plan, self._link = settings, plan, link
        self._stage, self._replica = layout.stage_of(link.rank), layout.replica_of(link.rank)
        self._peers = [layout.rank(stage=self._stage, replica=d) for d in range(layout.replicas)]
        self._source = SampleSource.of(training, settings)
        self._device = device or torch.device("cpu")
        determinism.pin(settings.exactness, self._device)
        self._built = build_stage(
            training,
            settings,
            model,
            plan.stages[self._stage],
            self._device,
            replicas=layout.replicas,
            replica=self._replica,
            offload=offload_of(self._device) if settings.offload_optimizer else None,
            materialise=materialise,
        )
        self._state = StageState(model, self._built)
        self._team = Team(
            link=link,
            peers=tuple(self._peers),
            replica=self._replica,
            is_sharded=self._built.gather is not None,
            wire_dtype=_WIRE_DTYPES[settings.reduce_dtype],
        )
        ties = tie_exchange(self._stage, plan.stages, self._built.ties)
        self._gradients = StepGradients(self._built, self._team, ties, layout)
        self._agreement = Agreement(link, layout)
        training = replace(training, arguments=model.arguments)
        self._pipeline = Pipeline(
            training, plan, link, self._source, self._built.runner, settings, self._device
        )
        self._scaling = LossScale(settings.precision)
        self._evaluations = Evaluations(
            training, settings, plan, link, self._agreement, self._built.segments, generation=generation
        )
        self._step = 0
        self._generation = generation
        self._losses: deque[LossRecord] = deque(maxlen=KEPT_LOSSES)
        self._wants_drain, self._wants_checkpoint = Drain.NONE, False
        self._says: Callable[[], Keeping] = Keeping
        self._before_change: list[Callable[[], object]] = []
        self._running: Stepping[StepDone | EvaluationDone] | None = None

    @property
    def step(self) -> int:
        """Number of committed steps; the next step to run."""
        return self._step

    @property
    def num_steps(self) -> int:
        """Length of the training."""
        return self._settings.num_steps

    @property
    def is_shared(self) -> bool:
        """Whether the replicas of a stage hold its optimizer state in shares."""
        return self._team.is_sharded

    @property
    def needed_segments(self) -> tuple[int, ...]:
        """Segments whose tensors `load` needs."""
        return self._state.needed_segments

    @property
    def realised(self) -> tuple[Op, ...]:
        """What this rank ran in its last step, in order; for replay and for a look at delays."""
        return tuple(self._pipeline.realised)

    @property
    def busy(self) -> Busy:
        """What its last step cost this rank, without waiting, data, messages and sums."""
        return self._pipeline.busy

    @property
    def is_evaluating(self) -> bool:
        """Whether what is under way is an evaluation, not a step."""
        return self._evaluations.is_due(self._step)

    def request(self, *, drain: Drain = Drain.NONE, checkpoint: bool = False) -> None:
        """Ask that all ranks stop after, or save, the step now running; kept until a vote carries it."""
        self._wants_drain = max(self._wants_drain, drain)
        self._wants_checkpoint |= checkpoint

    def keep_by(self, says: Callable[[], "Keeping"]) -> None:
        """Ask `says`, whenever ranks vote, about this rank's copies."""
        self._says = says

    def before_change(self, wait: Callable[[], object]) -> None:
        """Have `wait` called, once, before any tensor of `state` changes."""
        self._before_change.append(wait)

    @property
    def is_over(self) -> bool:
        """Whether the last step is committed, and evaluated if that is wanted."""
        return self._step >= self.num_steps and not self._evaluations.is_due(self._step)

    def advance(self) -> Progressed | Waiting | StepDone | EvaluationDone:
        """Run one ready op or one part of the step's end, or of the evaluation that is due before the next.

        Raises PeerLost, StepDiverged or whatever the script's code raises; the step was then not applied.
        """
        if self._running is None:
            is_due = self._evaluations.is_due(self._step)
            self._running = self._run_evaluation() if is_due else self._run_step()
        try:
            return next(self._running)
        except StopIteration as end:
            done: StepDone | EvaluationDone | None = end.value
        assert done is not None, "an engine whose step failed cannot go on"
        self._running = None
        return done

    def run_next(self) -> StepDone | EvaluationDone:
        """Run one whole step or evaluation, blocking on the link; for a rank with a process of its own."""
        while not isinstance(signal := self.advance(), StepDone | EvaluationDone):
            if isinstance(signal, Waiting):
                self._link.wait()
        return signal

    def run_step(self) -> StepDone:
        """Run up to the end of a step, blocking on the link."""
        while not isinstance(done := self.run_next(), StepDone):
            pass
        return done

    def weights_sha256(self) -> str:
        """Return the digest of the whole model's weights; every rank calls it, between two steps."""
        return run(self.digest(), self._link.wait)

    def digest(self) -> Stepping[str]:
        """Like `weights_sha256`, without blocking."""
        return self._agreement.weights_sha256([segment_digest(t) for t in self._state.weights()])

    def state(self) -> EngineState:
        """Return what a checkpoint holds, in names that no layout shows in; call it between two steps."""
        optimizer = self._built.optimizer
        trainer = TrainerState(
            step=self._step,
            optimizer_groups=optimizer.groups_text(),
            scheduler=optimizer.scheduler_text(),
            stream_cursor=self._source.cursor(),
            losses=self.losses,
            scaler=self._scaling.state,
            evaluations=self.evaluations,
        )
        return EngineState(segments=self._state.tensors(), trainer=trainer)

    def load(self, segments: StateTensors, trainer: TrainerState) -> None:
        """Continue from a checkpoint of any layout; `segments` holds at least `needed_segments`."""
        self.load_pieces((segments[index] for index in self.needed_segments), trainer)

    def _settle_changes(self) -> None:
        while self._before_change:
            self._before_change.pop()()

    def load_pieces(self, pieces: Iterable[Mapping[str, Tensor]], trainer: TrainerState) -> None:
        """Like `load`, from the tensors of those segments in any grouping, one group in memory at a time."""
        self._settle_changes()
        self._state.load(pieces, trainer)
        self._scaling.restore(trainer.scaler)
        if trainer.step or trainer.stream_cursor:
            self._source.restore(trainer.stream_cursor)
        self._step, self._losses, self._running = trainer.step, deque(trainer.losses, KEPT_LOSSES), None
        self._evaluations.restore(trainer.evaluations)

    @property
    def losses(self) -> tuple[LossRecord, ...]:
        """Losses of the last committed steps, those out of the checkpoint included."""
        return tuple(self._losses)

    @property
    def evaluations(self) -> tuple[EvaluationRecord, ...]:
        """The last evaluations, those out of the checkpoint included."""
        return self._evaluations.records

    def _run_evaluation(self) -> Stepping[EvaluationDone]:
        done = yield from self._evaluations.run(self._step, lambda: self._wants_drain, self._says().can_drain)
        if done.drain:
            self._wants_drain = Drain.NONE
        return done

    def all_agree(self, is_well: bool) -> bool:
        """Return whether every rank says yes; every rank calls it, between two steps. Blocks."""
        return run(self._agreement.all_agree(is_well), self._link.wait)

    def _run_step(self) -> Stepping[StepDone]:
        work = step_share(
            self._plan,
            step=self._step,
            num_samples=self._source.num_samples(self._step),
            replica=self._replica,
            exactness=self._settings.exactness,
        )
        self._gradients.begin(work.virtual)
        self._built.runner.loss_scale = self._scaling.scale
        self._built.runner.begin(work.virtual, work.owned, on_done=self._gradients.start)
        yield from self._gradients.alongside(self._pipeline.run(work.micros))
        if self._stage == self._plan.layout.stages - 1:
            self._agreement.contribute_losses(self._built.runner.losses())
        totals = yield from self._gradients.alongside(self._agreement.totals())
        if not totals.weight > 0:
            raise StepDiverged(
                f"step {self._step}: the loss weights sum to {totals.weight}; wanted more than 0"
            )
        partials = yield from self._gradients.finished(totals.weight * self._scaling.scale)
        yield from self._built.statistics.exchange(self._link, self._peers, self._replica)
        decision = yield from self._vote(partials)
        return (yield from self._commit(decision, totals, work))

    def _vote(self, partials: tuple[float, ...]) -> Stepping[Decision]:
        says = self._says()
        ballot = Ballot(
            drain=self._wants_drain,
            checkpoint=self._wants_checkpoint,
            partials=partials if self._replica == 0 or self._team.is_sharded else (),
            keep=says.wants,
            kept=says.kept,
            can_drain=says.can_drain,
        )
        return (yield from self._agreement.decide(ballot))

    def _commit(self, decision: Decision, totals: Totals, work: StepShare) -> Stepping[StepDone]:
        scale, learning_rate = self._scaling.scale, self._built.optimizer.learning_rate
        is_applied = self._scaling.judge(
            self._step, norm=decision.grad_norm, loss=totals.loss, weight=totals.weight / work.num_micro
        )
        if is_applied:
            self._apply(decision.grad_norm, totals.loss)
            if self._built.gather is not None:
                yield from self._built.gather.run(self._team)
        self._source.commit(self._step)
        record = LossRecord(
            step=self._step,
            loss_hex=totals.loss.hex(),
            weight=totals.weight,
            samples=work.num_samples,
            generation=self._generation,
            is_skipped=not is_applied,
        )
        self._losses.append(record)
        self._step += 1
        if decision.drain:
            self._wants_drain = Drain.NONE
        self._wants_checkpoint &= not decision.checkpoint
        return StepDone(
            record=record,
            loss=totals.loss,
            grad_norm=decision.grad_norm if is_applied else math.inf,
            learning_rate=learning_rate,
            drain=decision.drain,
            checkpoint=decision.checkpoint,
            loss_scale=scale,
            keep=decision.keep,
            recoverable=decision.recoverable,
        )

    def _apply(self, norm: float, loss: float) -> None:
        limit = self._settings.clip_grad_norm
        if limit is not None and (factor := clip_coefficient(norm, limit)) < 1.0:
            self._built.gradients.scale(factor)
        self._settle_changes()
        self._built.optimizer.step(loss)
        self._built.statistics.commit()
