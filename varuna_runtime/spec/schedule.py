"""Schedules as data, and the one pure rule by which engine and simulator choose a stage's next op.

Sends and receives are implied: F of a stage emits one activation message to the next stage, B or I one
gradient message to the previous one, each channel in the order of micro-batches. Backward is first in, first
out in every program (contract E4); a rule may only change when F runs among the others.
"""

from dataclasses import dataclass
from enum import StrEnum
from typing import NamedTuple


class OpKind(StrEnum):
    """F forward; R recompute, the replay of a forward before its backward; B backward.

    A split backward is I, the gradients of the stage's inputs, and W, later, those of its parameters.
    """

    FORWARD = "F"
    RECOMPUTE = "R"
    BACKWARD = "B"
    INPUT = "I"
    WEIGHT = "W"


class Op(NamedTuple):
    """One op on one micro-batch, counted 0..n-1 within the replica's own list."""

    kind: OpKind
    micro: int

    def __str__(self) -> str:
        """Return e.g. `F3`."""
        return f"{self.kind}{self.micro}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What one stage runs in a step; `spec.programs` makes them.

    `listed` holds a static list: its ops other than F in order, each with the number of forwards before it.
    Without one the ops are chosen by what is there. `pending` 0 means that the backward is whole.
    """

    stage: int
    num_stages: int
    num_micro: int
    recompute: bool
    in_flight: int  # most micro-batches after F and before the end of B or I
    pending: int = 0  # most micro-batches after I and before the end of W
    listed: tuple[tuple[int, Op], ...] | None = None
    deviates: bool = False  # a forward may pass an op of the list that waits for a gradient

    @property
    def is_first(self) -> bool:
        """True where activations are data, all there from the start."""
        return self.stage == 0

    @property
    def is_last(self) -> bool:
        """True where a forward ends in the loss and so brings its own gradient."""
        return self.stage == self.num_stages - 1

    @property
    def num_ops(self) -> int:
        """Number of ops of a whole step."""
        return self.num_micro * (2 + self.recompute + (self.pending > 0))


@dataclass(slots=True)
class State:
    """How often each op of a stage ran, and how many messages arrived."""

    activations: int = 0
    gradients: int = 0
    forwards: int = 0
    recomputes: int = 0
    backwards: int = 0  # B, or I where the backward is split
    weights: int = 0

    @classmethod
    def start(cls, program: Program) -> "State":
        """Return the state before the first op."""
        return cls(activations=program.num_micro if program.is_first else 0)

    def finish(self, program: Program, op: Op) -> None:
        """Count an op that ended."""
        kind = op.kind
        if kind is OpKind.FORWARD:
            self.forwards += 1
            self.gradients += program.is_last
        elif kind is OpKind.RECOMPUTE:
            self.recomputes += 1
        elif kind is OpKind.WEIGHT:
            self.weights += 1
        else:
            self.backwards += 1

    @property
    def num_done(self) -> int:
        """Number of ops that ended."""
        return self.forwards + self.recomputes + self.backwards + self.weights


def next_op(program: Program, state: State) -> Op | None:
    """Return the op to run now, or None to wait for a message (or because all is done)."""
    if program.listed is not None:
        return _listed(program, program.listed, state)
    owed = state.backwards - state.weights if program.pending else 0
    if owed and owed == program.pending:
        return Op(OpKind.WEIGHT, state.weights)
    can_backward = not program.recompute or state.recomputes > state.backwards
    if state.backwards < state.gradients:
        if not can_backward:
            return Op(OpKind.RECOMPUTE, state.backwards)
        return Op(OpKind.INPUT if program.pending else OpKind.BACKWARD, state.backwards)
    if _may_forward(program, state):
        return Op(OpKind.FORWARD, state.forwards)
    if not can_backward and state.backwards < state.forwards:
        return Op(OpKind.RECOMPUTE, state.backwards)  # idle: ahead of its gradient
    return Op(OpKind.WEIGHT, state.weights) if owed else None


def _listed(program: Program, listed: tuple[tuple[int, Op], ...], state: State) -> Op | None:
    at = state.recomputes + state.backwards + state.weights
    if at == len(listed) or state.forwards < listed[at][0]:
        return Op(OpKind.FORWARD, state.forwards) if _may_forward(program, state) else None
    head = listed[at][1]
    if head.micro < state.gradients or head.kind is OpKind.WEIGHT:
        return head
    if program.deviates:
        return _instead(program, state, head)
    return head if head.kind is OpKind.RECOMPUTE else None


def _instead(program: Program, state: State, head: Op) -> Op | None:
    """What to do while the gradient of the list's head is not here.

    A recompute is not done ahead of its gradient as long as forwards may come: until its backward no forward
    runs, as there is room for one recomputed micro-batch and nothing else.
    """
    is_held = program.recompute and head.kind is not OpKind.RECOMPUTE
    if not is_held and _may_forward(program, state):
        return Op(OpKind.FORWARD, state.forwards)
    no_forward_comes = state.forwards in (program.num_micro, state.backwards + program.in_flight)
    return head if head.kind is OpKind.RECOMPUTE and no_forward_comes else None


def _may_forward(program: Program, state: State) -> bool:
    return state.forwards < state.activations and state.forwards - state.backwards < program.in_flight


def awaited(program: Program, state: State) -> str:
    """Say in words what a stage without a next op waits for."""
    return (
        f"activation {state.activations} or gradient {state.gradients} "
        f"of stage {program.stage} after {state.num_done} of {program.num_ops} ops"
    )
