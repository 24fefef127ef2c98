"""One stage's gradients of a step: summed over replicas and tied uses while the pipeline goes on."""

from typing import TypeVar

from varuna_runtime.spec.layout import Layout
from varuna_runtime.worker.build import BuiltStage
from varuna_runtime.worker.reduce import StageReduction, Team
from varuna_runtime.worker.signals import PROGRESSED, Stepping, Waiting
from varuna_runtime.worker.ties import TieExchange

T = TypeVar("T")


class StepGradients:
    """Turns what the accumulators of one rank hold into every parameter's `.grad`; never blocks."""

    def __init__(self, built: BuiltStage, team: Team, ties: TieExchange, layout: Layout) -> None:
        self._built, self._team, self._ties, self._layout = built, team, ties, layout
        self._reduction = StageReduction(team, built.accumulators, built.ranges)
        self._complete: list[int] = []  # segments to hand over when the op ends

    def begin(self, virtual: int) -> None:
        """Start a step of `virtual` virtual replicas over all replicas."""
        self._complete.clear()
        self._reduction.begin(virtual)

    def start(self, position: int) -> None:
        """Hand over a segment: its last gradient of the step was just added, in the middle of an op.

        What the op is to send goes first: the stage before waits for it, and it would share the interface.
        """
        self._complete.append(self._built.segments[position].index)
        if self._ties.stage == 0:  # it sends nothing
            self._start_complete()
            self._reduction.advance()

    def alongside(self, work: Stepping[T]) -> Stepping[T]:
        """Do `work`, and while it waits, as much of the reduction as the messages allow."""
        while True:
            try:
                signal = next(work)
            except StopIteration as end:
                value: T = end.value
                return value
            self._start_complete()
            has_moved = isinstance(signal, Waiting) and self._reduction.advance()
            yield PROGRESSED if has_moved else signal

    def _start_complete(self) -> None:
        while self._complete:
            self._reduction.start(self._complete.pop(0))

    def finished(self, weight: float) -> Stepping[tuple[float, ...]]:
        """Set every `.grad` to its sum divided by `weight`; return the norm's partials in order."""
        gradients = self._built.gradients
        sums = yield from self._reduction.finished(lambda at, total: gradients.assign(at, total, weight))
        uses = gradients.use_sums(sums)
        ties = yield from self._ties.combined(self._team.link, self._layout, self._team.replica, uses)
        gradients.join(ties, weight)
        return gradients.partials()
