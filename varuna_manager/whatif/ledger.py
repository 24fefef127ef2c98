"""The account of a replay: what the job did when, and what of it lasted."""

from dataclasses import dataclass, replace
from enum import StrEnum

from varuna_manager.whatif.stretch import Stretch


class Doing(StrEnum):
    """What a job does at a time."""

    TRAINING = "training"
    MOVING = "moving"  # between two generations: detection, drain, plan, start
    PARKED = "parked"  # too few nodes, or no plan for them


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """A time in which nothing changes; layout, nodes and step time are of the plan that trains."""

    start_s: float
    end_s: float
    doing: Doing
    layout: str = ""
    num_nodes: int = 0
    step_s: float = 0.0

    @property
    def length_s(self) -> float:
        """How long it lasts."""
        return self.end_s - self.start_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Course:
    """How a policy fared. Lost steps were committed once and had to be done again."""

    policy: str
    spans: tuple[Span, ...]
    end_s: float
    steps: int  # committed at the end; durable ones if nothing trains then
    lost_steps: int
    begun_steps: float  # begun and never committed, in parts of a step
    lost_s: float  # both
    num_morphs: int
    finished_s: float | None  # when the job's own number of steps was committed


class Ledger:
    """Follows one job; times never go back."""

    def __init__(self, num_steps: int) -> None:
        self._num_steps = num_steps
        self._spans: list[Span] = []
        self._now = Span(start_s=0.0, end_s=0.0, doing=Doing.PARKED)
        self.stretch: Stretch | None = None
        self.committed = 0
        self.durable = 0  # of those, once it is halted
        self._step_s = 0.0
        self._starts = 0
        self._lost_steps = 0
        self._begun_steps = 0.0
        self._lost_s = 0.0
        self.finished_s: float | None = None

    def begin(self, stretch: Stretch, *, layout: str, num_nodes: int) -> None:
        """A generation trains from here on; what was committed beyond its first step is lost."""
        self._lose(self.committed - stretch.step)
        self._starts += 1
        self.stretch, self.committed, self._step_s = stretch, stretch.step, stretch.step_s
        self._turn(
            Span(
                start_s=stretch.start_s,
                end_s=0.0,
                doing=Doing.TRAINING,
                layout=layout,
                num_nodes=num_nodes,
                step_s=stretch.step_s,
            )
        )

    def halt(self, at_s: float) -> None:
        """It trains no longer; the step under way is lost."""
        if self.stretch is None:
            return
        self.committed = self.stretch.committed(at_s)
        self.durable = self.stretch.durable(at_s)
        begun_s = self.stretch.begun_s(at_s)
        self._begun_steps += begun_s / self.stretch.step_s
        self._lost_s += begun_s
        self._note_finish(self.stretch)
        self.stretch = None
        self._turn(Span(start_s=at_s, end_s=0.0, doing=Doing.MOVING))

    def save(self) -> None:
        """All that was committed before it was halted is durable."""
        self.durable = self.committed

    def idle(self, at_s: float, doing: Doing) -> None:
        """It waits, in another way than before."""
        if self.stretch is None and doing is not self._now.doing:
            self._turn(Span(start_s=at_s, end_s=0.0, doing=doing))

    def closed(self, policy: str, at_s: float) -> Course:
        """Return the account up to now, which is the last call."""
        if self.stretch is not None:
            self.committed = self.stretch.committed(at_s)
            self._note_finish(self.stretch)
        else:
            self._lose(self.committed - self.durable)
            self.committed = self.durable
        self._turn(replace(self._now, start_s=at_s))
        return Course(
            policy=policy,
            spans=tuple(self._spans),
            end_s=at_s,
            steps=self.committed,
            lost_steps=self._lost_steps,
            begun_steps=self._begun_steps,
            lost_s=self._lost_s,
            num_morphs=max(0, self._starts - 1),
            finished_s=self.finished_s,
        )

    def _lose(self, steps: int) -> None:
        self._lost_steps += steps
        self._lost_s += steps * self._step_s

    def _turn(self, span: Span) -> None:
        if span.start_s > self._now.start_s:
            self._spans.append(replace(self._now, end_s=span.start_s))
        self._now = span

    def _note_finish(self, stretch: Stretch) -> None:
        if self.finished_s is None and stretch.step <= self._num_steps <= self.committed:
            self.finished_s = stretch.reaches(self._num_steps)
