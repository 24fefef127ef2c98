"""Schedules as data: per-stage op lists and the one ready-rule that engine and simulator share.

Sends and receives are implied: F of a stage emits one activation message to the next stage, B one gradient
message to the previous one, each channel in the order of the ops that emit them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from varuna_runtime.spec.layout import ScheduleKind


class OpKind(StrEnum):
    """F forward, R recompute (replay of the forward before its backward), B backward."""

    FORWARD = "F"
    RECOMPUTE = "R"
    BACKWARD = "B"


@dataclass(frozen=True, slots=True)
class Op:
    """One op on one micro-batch, counted 0..n-1 within the replica's own list."""

    kind: OpKind
    micro: int

    def __str__(self) -> str:
        """Return e.g. `F3`."""
        return f"{self.kind}{self.micro}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """How many activations and gradients a stage has received; the first stage counts its data as arrived."""

    activations: int
    gradients: int


def program(
    kind: ScheduleKind, *, stage: int, num_stages: int, num_micro: int, recompute: bool
) -> tuple[Op, ...]:
    """Return the op list of one stage; backward is FIFO in every program (contract E4).

    GPipe: all forwards, then all backwards. 1F1B: at most P - stage micro-batches in flight, eager 1F1B twice
    that less one.
    """
    warm_up = most_in_flight(kind, stages_left=num_stages - stage, num_micro=num_micro)
    ops = [Op(OpKind.FORWARD, i) for i in range(warm_up)]
    for i in range(num_micro):
        if recompute:
            ops.append(Op(OpKind.RECOMPUTE, i))
        ops.append(Op(OpKind.BACKWARD, i))
        if warm_up + i < num_micro:
            ops.append(Op(OpKind.FORWARD, warm_up + i))
    return tuple(ops)


def most_in_flight(kind: ScheduleKind, *, stages_left: int, num_micro: int) -> int:
    """Return the most micro-batches a stage holds by nature; `stages_left` counts it and those after it."""
    if kind is ScheduleKind.GPIPE:
        return num_micro
    return min(stages_left if kind is ScheduleKind.ONE_F_ONE_B else 2 * stages_left - 1, num_micro)


def is_ready(op: Op, arrived: Arrivals) -> bool:
    """The ready-rule: F needs its activation, B its gradient, R nothing (its input is stashed)."""
    match op.kind:
        case OpKind.FORWARD:
            return op.micro < arrived.activations
        case OpKind.BACKWARD:
            return op.micro < arrived.gradients
        case OpKind.RECOMPUTE:
            return True


def next_op(ops: Sequence[Op], done: int, arrived: Arrivals) -> Op | None:
    """Return the op to run now, or None to wait; static programs run their list in order."""
    if done < len(ops) and is_ready(ops[done], arrived):
        return ops[done]
    return None
