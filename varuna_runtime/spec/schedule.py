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
            self.gradients += program.stage == program.num_stages - 1
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


WAIT, FORWARD, RECOMPUTE, BACKWARD, INPUT, WEIGHT = -1, 0, 1, 2, 3, 4
"""What `choose` answers; from 0 on the place of the kind in `KINDS`."""
KINDS = tuple(OpKind)
NO_LIST = -1  # for the forwards before a head: the ops are chosen by what is there


def choose(
    num_micro: int,
    in_flight: int,
    pending: int,
    recompute: bool,
    deviates: bool,
    activations: int,
    gradients: int,
    forwards: int,
    recomputes: int,
    backwards: int,
    weights: int,
    head_forwards: int,
    head: int,
    head_micro: int,
) -> int:
    """Return the kind of the op to run now, or `WAIT`.

    The only place where this is decided. Engine and small simulations call it, large ones compile it: so it
    is one function of integers that calls no other. `head_forwards` is the number of forwards before the head
    of the list, more than `num_micro` behind its end, or `NO_LIST`.
    """
    may_forward = forwards < activations and forwards - backwards < in_flight
    if head_forwards > forwards:
        return FORWARD if may_forward else WAIT
    if head_forwards != NO_LIST:
        if head_micro < gradients or head == WEIGHT:
            return head
        # No recompute ahead of its gradient as long as forwards may come: until its backward none runs, as
        # there is room for one recomputed micro-batch and nothing else.
        if deviates and may_forward and (head == RECOMPUTE or not recompute):
            return FORWARD
        no_forward_comes = forwards == num_micro or forwards == backwards + in_flight
        return RECOMPUTE if head == RECOMPUTE and (no_forward_comes or not deviates) else WAIT
    owed = backwards - weights if pending else 0
    if owed and owed == pending:
        return WEIGHT
    can_backward = not recompute or recomputes > backwards
    if backwards < gradients:
        whole = INPUT if pending else BACKWARD
        return whole if can_backward else RECOMPUTE
    if may_forward:
        return FORWARD
    if not can_backward and backwards < forwards:
        return RECOMPUTE  # idle: ahead of its gradient
    return WEIGHT if owed else WAIT


def next_op(program: Program, state: State) -> Op | None:
    """Return the op to run now, or None to wait for a message (or because all is done)."""
    listed = program.listed
    head_forwards, head = NO_LIST, None
    if listed is not None:
        at = state.recomputes + state.backwards + state.weights
        head_forwards, head = listed[at] if at < len(listed) else (program.num_micro + 1, None)
    kind = choose(
        program.num_micro,
        program.in_flight,
        program.pending,
        program.recompute,
        program.deviates,
        state.activations,
        state.gradients,
        state.forwards,
        state.recomputes,
        state.backwards,
        state.weights,
        head_forwards,
        WAIT if head is None else KINDS.index(head[0]),
        WAIT if head is None else head[1],
    )
    if kind == WAIT:
        return None
    if kind == FORWARD:
        return Op(KINDS[FORWARD], state.forwards)
    return head or Op(KINDS[kind], state.weights if kind == WEIGHT else state.backwards)


def awaited(program: Program, state: State) -> str:
    """Say in words what a stage without a next op waits for."""
    return (
        f"activation {state.activations} or gradient {state.gradients} "
        f"of stage {program.stage} after {state.num_done} of {program.num_ops} ops"
    )
