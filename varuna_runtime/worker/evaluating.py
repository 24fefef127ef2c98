"""Carries out an evaluation on one rank: forward only, over the pipeline's own layout and link.

It changes nothing of the training. A round is as many micro-batches as a step has; between two of them it is
abandoned where a rank is asked to drain.
"""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from varuna_runtime.spec.batches import micro_batch_rows, num_micro_batches
from varuna_runtime.spec.job import Exactness
from varuna_runtime.spec.layout import Plan
from varuna_runtime.spec.manifest import EvaluationRecord, Figure
from varuna_runtime.spec.reduction import share
from varuna_runtime.spec.rng import forward_key, key
from varuna_runtime.worker.agreement import Agreement
from varuna_runtime.worker.data import SampleSource
from varuna_runtime.worker.evaluation import Evaluation
from varuna_runtime.worker.feed import Feed
from varuna_runtime.worker.figures import Measure, Measures, measures_of
from varuna_runtime.worker.link import Link
from varuna_runtime.worker.segment import SegmentRunner
from varuna_runtime.worker.signals import PROGRESSED, Drain, EvaluationDone, Stepping, receive
from varuna_runtime.worker.stage import weighted_sum
from varuna_runtime.worker.training import ResolvedTraining, Training

_TAG = "evaluation"
KEPT = 32  # records in every checkpoint; a node may vanish before its report of one was heard


class Evaluations:
    """The evaluations of one rank's training: when, how, and what came out."""

    def __init__(
        self,
        training: Training,
        settings: ResolvedTraining,
        plan: Plan,
        link: Link,
        agreement: Agreement,
        segments: Sequence[SegmentRunner],
        *,
        generation: int,
    ) -> None:
        self._evaluation, self._settings, self._generation = training.evaluation, settings, generation
        if self._evaluation is not None:
            self._evaluator = Evaluator(training, self._evaluation, settings, plan, link, agreement, segments)
        self._records: deque[EvaluationRecord] = deque(maxlen=KEPT)

    @property
    def records(self) -> tuple[EvaluationRecord, ...]:
        """The last ones, those out of the checkpoint included."""
        return tuple(self._records)

    def restore(self, records: Sequence[EvaluationRecord]) -> None:
        """Continue from a checkpoint."""
        self._records = deque(records, KEPT)

    def is_due(self, step: int) -> bool:
        """Return whether to evaluate now that `step` steps are committed: wanted, and not made yet."""
        if self._evaluation is None or not self._evaluation.is_due(step, self._settings):
            return False
        return all(record.step != step for record in self._records)

    def run(self, step: int, wants_drain: Callable[[], Drain], can_drain: Drain) -> Stepping[EvaluationDone]:
        """Evaluate, or give up for a drain; the outcome is equal on every rank."""
        figures = yield from self._evaluator.run(wants_drain, can_drain)
        if isinstance(figures, Drain):
            return EvaluationDone(record=None, drain=figures)
        record = EvaluationRecord(
            step=step, samples=self._evaluator.num_samples, figures=figures, generation=self._generation
        )
        self._records.append(record)
        return EvaluationDone(record=record, drain=Drain.NONE)


class Evaluator:
    """One rank's part in carrying out an evaluation."""

    def __init__(
        self,
        training: Training,
        evaluation: Evaluation,
        settings: ResolvedTraining,
        plan: Plan,
        link: Link,
        agreement: Agreement,
        segments: Sequence[SegmentRunner],
    ) -> None:
        self._training = replace(
            training,
            loss=evaluation.loss or training.loss,
            collate=evaluation.collate or training.collate,
            inputs=evaluation.inputs or training.inputs,
        )
        self._metrics = evaluation.metrics
        self._link, self._agreement, self._segments = link, agreement, segments
        layout = plan.layout
        self._replica, self._replicas = layout.replica_of(link.rank), layout.replicas
        stage = layout.stage_of(link.rank)
        self._before = link.rank - 1 if stage else None
        self._after = link.rank + 1 if stage < layout.stages - 1 else None
        self._seed = key("evaluation", settings.seed)  # every evaluation draws the same numbers
        self._size = evaluation.batch_size or plan.batch.micro_batch_size
        self._round = num_micro_batches(plan.batch.batch_size, plan.batch.micro_batch_size)
        self.num_samples = len(evaluation.dataset)
        source = SampleSource(
            evaluation.dataset,
            collate=self._training.collate,
            seed=self._seed,
            shuffle=False,
            batch_size=self.num_samples,
            total_samples=self.num_samples,
        )
        self._feed = Feed(
            self._training,
            source,
            size=self._size,
            seed=self._seed,
            device=segments[0].device,
            needs_proof=settings.exactness is Exactness.BITWISE,
        )

    def run(self, wants_drain: Callable[[], Drain], can_drain: Drain) -> Stepping[tuple[Figure, ...] | Drain]:
        """Return the figures, equal on every rank; how to stop where it was abandoned."""
        self._agreement.begin_figures()
        num_micro = num_micro_batches(self.num_samples, self._size)
        for first in range(0, num_micro, self._round):
            length = min(self._round, num_micro - first)
            found: list[Measures] = []
            for index in share(length, self._replicas, self._replica):
                found += yield from self._micro_batch(first + index)
                yield PROGRESSED
            drain = yield from self._agreement.end_of_round(found, drain=wants_drain(), can_drain=can_drain)
            if drain and first + length < num_micro:
                return drain
        return (yield from self._agreement.figures())

    def _micro_batch(self, index: int) -> Stepping[tuple[Measures, ...]]:
        is_end = self._before is None or self._after is None
        batch, values = self._feed.read(0, index) if is_end else (None, ())
        if self._before is not None:
            values = yield from receive(self._link, self._before, _TAG)
        *inner, last = self._segments
        for segment in inner:
            values = segment.evaluate(values, key=self._key(index, segment))
        if self._after is None:
            head = self._head(last, batch, index)
            return (last.evaluate_head(values, key=self._key(index, last), head=head),)
        self._link.send(self._after, _TAG, last.evaluate(values, key=self._key(index, last)))
        return ()

    def _head(self, last: SegmentRunner, batch: Any, index: int) -> Callable[[Any], Measures]:
        rows = len(micro_batch_rows(self.num_samples, self._size, index))

        def measured(output: Any) -> Measures:
            with last.autocast():
                loss_sum, weight = weighted_sum(self._training.loss(output, batch), rows)
            loss = Measure("loss", float(loss_sum), float(weight))
            return (loss, *(measures_of(self._metrics(output, batch), rows) if self._metrics else ()))

        return measured

    def _key(self, index: int, segment: SegmentRunner) -> int:
        return forward_key(seed=self._seed, step=0, micro_batch=index, segment=segment.index)
