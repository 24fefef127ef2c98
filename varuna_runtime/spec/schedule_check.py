"""Proves programs complete, within their memory, in equal order on both ends of a channel, free of deadlock.

Zero-buffer semantics: a message is nowhere but at its sender until its receiver takes it. Our engine keeps
what it sends and goes on: a program is a chain of ops, each channel a sender and a receiver of their own.
"""

from collections import deque
from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from varuna_runtime.spec.errors import InvalidInput
from varuna_runtime.spec.schedule import Op, OpKind, Program, State, awaited, next_op


class Side(StrEnum):
    """Which end of a message."""

    SEND = "SEND"
    RECEIVE = "RECV"


class Transfer(NamedTuple):
    """One end of one message between two stages; the two ends are equal but for their side."""

    side: Side
    source: int
    target: int
    op: Op  # the op that emits it

    def __str__(self) -> str:
        """Return e.g. `SEND_F2 0>1`."""
        return f"{self.side}_{self.op} {self.source}>{self.target}"


def validate(programs: Sequence[Program]) -> None:
    """Check the programs of all stages of one replica together; raises InvalidInput that names the fault.

    Every stage is run twice, with messages as early and as late as they can be: a rule that gets stuck in
    neither cannot in between, as none of them waits for a message to be absent.
    """
    for program in programs:
        if program.listed is not None:
            forwards = [Op(OpKind.FORWARD, i) for i in range(program.num_micro)]
            _check_complete(program, [*forwards, *(op for _, op in program.listed)])
    for is_early in (True, False):
        orders = _run(programs, is_early=is_early)
        for program, order in zip(programs, orders, strict=True):
            _check_stage(program, order)
    refuse_deadlock(_channels(orders))


def refuse_deadlock(lists: Sequence[Sequence[Transfer]]) -> None:
    """Raise InvalidInput unless lists that block at each transfer until its other end is there all end."""
    at = [0] * len(lists)
    waiting: dict[Transfer, int] = {}
    ready = list(range(len(lists)))
    while ready:
        actor = ready.pop()
        if at[actor] == len(lists[actor]):
            continue
        transfer = lists[actor][at[actor]]
        side = Side.RECEIVE if transfer.side is Side.SEND else Side.SEND
        other = waiting.pop(transfer._replace(side=side), None)
        if other is None:
            waiting[transfer] = actor
            continue
        for met in (actor, other):
            at[met] += 1
            ready.append(met)
    if waiting:
        raise InvalidInput(f"the schedule dead-locks at {', '.join(sorted(map(str, waiting)))}")


def _run(programs: Sequence[Program], *, is_early: bool) -> list[list[Op]]:
    """Return the order in which each stage runs its ops; messages arrive at once or only when all wait."""
    states = [State.start(program) for program in programs]
    orders: list[list[Op]] = [[] for _ in programs]
    sent: deque[tuple[int, OpKind]] = deque()
    awake = deque(range(len(programs)))
    while awake or sent:
        if sent and (is_early or not awake):
            receiver, kind = sent.popleft()
            if kind is OpKind.FORWARD:
                states[receiver].activations += 1
            else:
                states[receiver].gradients += 1
            awake.append(receiver)
            continue
        stage = awake.popleft()
        program, state = programs[stage], states[stage]
        while state.num_done < program.num_ops and (op := next_op(program, state)) is not None:
            state.finish(program, op)
            orders[stage].append(op)
            if (target := _target(program, op)) is not None:
                sent.append((target, op.kind))
    stuck = [
        awaited(program, state)
        for program, state in zip(programs, states, strict=True)
        if state.num_done < program.num_ops
    ]
    if stuck:
        raise InvalidInput(f"the schedule dead-locks, waiting for {'; '.join(stuck)}")
    return orders


def _target(program: Program, op: Op) -> int | None:
    if op.kind is OpKind.FORWARD and not program.is_last:
        return program.stage + 1
    if op.kind in (OpKind.BACKWARD, OpKind.INPUT) and not program.is_first:
        return program.stage - 1
    return None


def _check_complete(program: Program, order: Sequence[Op]) -> None:
    """Each micro-batch has each of its ops once, in order of micro-batch (contract E4)."""
    backward = (OpKind.INPUT, OpKind.WEIGHT) if program.pending else (OpKind.BACKWARD,)
    wanted = (OpKind.FORWARD, *([OpKind.RECOMPUTE] if program.recompute else []), *backward)
    for kind in OpKind:
        micros = [op.micro for op in order if op.kind is kind]
        if micros != (list(range(program.num_micro)) if kind in wanted else []):
            raise InvalidInput(f"stage {program.stage} runs {kind} on micro-batches {micros}")


def _check_stage(program: Program, order: Sequence[Op]) -> None:
    """All ops are there, none before what it needs, and no more is held than the program says."""
    _check_complete(program, order)
    done = dict.fromkeys(OpKind, 0)
    for op in order:
        _check_prior(program, op, done)
        done[op.kind] += 1
        ended = done[OpKind.BACKWARD] + done[OpKind.INPUT]
        if done[OpKind.FORWARD] - ended > program.in_flight:
            raise InvalidInput(f"stage {program.stage} holds more than {program.in_flight} after {op}")
        if done[OpKind.RECOMPUTE] - ended > 1:
            raise InvalidInput(f"stage {program.stage} holds two recomputed micro-batches after {op}")
        if program.pending and ended - done[OpKind.WEIGHT] > program.pending:
            raise InvalidInput(f"stage {program.stage} owes more than {program.pending} W after {op}")


def _check_prior(program: Program, op: Op, done: dict[OpKind, int]) -> None:
    prior = {
        OpKind.FORWARD: None,
        OpKind.RECOMPUTE: OpKind.FORWARD,
        OpKind.BACKWARD: OpKind.RECOMPUTE if program.recompute else OpKind.FORWARD,
        OpKind.INPUT: OpKind.RECOMPUTE if program.recompute else OpKind.FORWARD,
        OpKind.WEIGHT: OpKind.INPUT,
    }[op.kind]
    if prior is not None and done[prior] <= op.micro:
        raise InvalidInput(f"stage {program.stage} runs {op} before {prior}{op.micro}")


def _channels(orders: Sequence[Sequence[Op]]) -> list[list[Transfer]]:
    """Return the sends and the receives of every channel, each a list of its own."""
    lists = []
    for stage, after in enumerate(range(1, len(orders))):
        backward = (OpKind.BACKWARD, OpKind.INPUT)
        for kinds, source, target in (((OpKind.FORWARD,), stage, after), (backward, after, stage)):
            for side, at in ((Side.SEND, source), (Side.RECEIVE, target)):
                micros = [op.micro for op in orders[at] if op.kind in kinds]
                lists.append([Transfer(side, source, target, Op(kinds[0], i)) for i in micros])
    return lists
