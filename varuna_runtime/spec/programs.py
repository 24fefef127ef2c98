"""The programs of the schedule kinds, stage by stage; what the ops do is in `spec.schedule`."""

from collections.abc import Sequence
from functools import lru_cache

from varuna_runtime.spec.layout import Plan, ScheduleKind
from varuna_runtime.spec.schedule import Op, OpKind, Program

Listed = tuple[tuple[int, Op], ...]


def most_in_flight(kind: ScheduleKind, *, stages_left: int, num_micro: int) -> int:
    """Return the most micro-batches a stage holds by nature; `stages_left` counts it and those after it."""
    if kind is ScheduleKind.ONE_F_ONE_B:
        return min(stages_left, num_micro)
    if kind is ScheduleKind.EAGER:
        return min(2 * stages_left - 1, num_micro)
    return num_micro


def in_flight_cap(kind: ScheduleKind, *, stages_left: int, num_micro: int, in_flight: int) -> int:
    """Return the most micro-batches a stage holds; `in_flight` 0 means what the kind has by nature.

    Eager 1F1B may be given more, as long as no stage is given more than the one before.
    """
    natural = most_in_flight(kind, stages_left=stages_left, num_micro=num_micro)
    if in_flight == 0:
        return natural
    return min(in_flight, num_micro if kind is ScheduleKind.EAGER else natural)


def most_pending(kind: ScheduleKind, *, num_stages: int, num_micro: int) -> int:
    """Return the most micro-batches whose W a stage owes after their I; 0 where the backward is whole.

    With 2 P of them, the last stages have W enough to fill the drain; with P they had not. The third P is
    work for the time until a late message comes.
    """
    return min(3 * num_stages, num_micro) if kind is ScheduleKind.ZERO_BUBBLE else 0


@lru_cache(maxsize=4096)
def program(
    kind: ScheduleKind, *, stage: int, num_stages: int, num_micro: int, recompute: bool, in_flight: int = 0
) -> Program:
    """Return the program of one stage; `in_flight` 0 means what the kind has by nature.

    GPipe: all forwards, then all backwards. 1F1B: backward and forward in turn, P - stage in flight; eager
    1F1B: twice that less one. Varuna: the list that its rule gives for ops of one unit of time, from which
    a forward may deviate. Work-conserving: backward > recompute whose gradient is here > forward > recompute
    ahead of it. Zero-bubble: the same with the backward split, W last, or first when too many are owed.
    """
    cap = in_flight_cap(kind, stages_left=num_stages - stage, num_micro=num_micro, in_flight=in_flight)
    return Program(
        stage=stage,
        num_stages=num_stages,
        num_micro=num_micro,
        recompute=recompute,
        in_flight=cap,
        pending=most_pending(kind, num_stages=num_stages, num_micro=num_micro),
        listed=_listed(kind, stage, num_stages, num_micro, cap, recompute),
        deviates=kind is ScheduleKind.VARUNA,
    )


def stage_program(plan: Plan, stage: int, num_micro: int) -> Program:
    """Return the program of one stage of a plan, for a replica with `num_micro` micro-batches."""
    return program(
        plan.schedule,
        stage=stage,
        num_stages=plan.layout.stages,
        num_micro=num_micro,
        recompute=plan.stages[stage].recompute,
        in_flight=plan.stages[stage].in_flight,
    )


def of_list(ops: Sequence[Op], *, stage: int, num_stages: int) -> Program:
    """Return the program that runs `ops` in their order; `validate` tells whether it can."""
    listed, forwards, most = [], 0, 0
    for op in ops:
        if op.kind is OpKind.FORWARD:
            forwards += 1
        else:
            listed.append((forwards, op))
        backwards = sum(other.kind in (OpKind.BACKWARD, OpKind.INPUT) for _, other in listed)
        most = max(most, forwards - backwards)
    kinds = [op.kind for op in ops]
    return Program(
        stage=stage,
        num_stages=num_stages,
        num_micro=forwards,
        recompute=OpKind.RECOMPUTE in kinds,
        in_flight=most,
        pending=forwards if OpKind.WEIGHT in kinds else 0,
        listed=tuple(listed),
    )


def _listed(
    kind: ScheduleKind, stage: int, num_stages: int, num_micro: int, cap: int, recompute: bool
) -> Listed | None:
    if kind in (ScheduleKind.WORK_CONSERVING, ScheduleKind.ZERO_BUBBLE):
        return None
    if kind is ScheduleKind.VARUNA:
        return _capped(unit_time_lists(num_stages, num_micro)[stage], cap, recompute)
    return _one_for_one(num_micro, cap, recompute)


@lru_cache(maxsize=1024)
def _one_for_one(num_micro: int, cap: int, recompute: bool) -> Listed:
    """`cap` forwards, then backwards and forwards in turn."""
    kinds = (OpKind.RECOMPUTE, OpKind.BACKWARD) if recompute else (OpKind.BACKWARD,)
    return tuple((min(cap + i, num_micro), Op(kind, i)) for i in range(num_micro) for kind in kinds)


def _capped(backwards: Sequence[tuple[int, int]], cap: int, recompute: bool) -> Listed:
    """Return a list in which no forward exceeds the cap; takes the forwards before each R and each B."""
    found = []
    for i, (before_recompute, before_backward) in enumerate(backwards):
        if recompute:
            found.append((min(before_recompute, i + cap), Op(OpKind.RECOMPUTE, i)))
        found.append((min(before_backward, i + cap), Op(OpKind.BACKWARD, i)))
    return tuple(found)


@lru_cache(maxsize=64)
def unit_time_lists(num_stages: int, num_micro: int) -> tuple[tuple[tuple[int, int], ...], ...]:
    """Run Varuna's rule in lock-step; return how many forwards each stage does before each R and each B.

    F and R take one unit, B two: after the first a gradient is at the stage before, which may then recompute.
    Messages take no time. Each unit a stage does the first it can of: the rest of B, B, R, F.
    """
    forward, recompute, backward, rest = ([0] * num_stages for _ in range(4))  # work that waits
    forward[0] = num_micro
    forwards = [0] * num_stages
    at_recompute: list[list[int]] = [[] for _ in range(num_stages)]
    at_backward: list[list[int]] = [[] for _ in range(num_stages)]
    while len(at_backward[0]) < num_micro:
        found: list[tuple[list[int], int]] = []
        for s in range(num_stages):
            if rest[s]:
                rest[s] -= 1
            elif backward[s]:
                backward[s] -= 1
                at_backward[s].append(forwards[s])
                found.append((rest, s))
                if s > 0:
                    found.append((recompute, s - 1))
            elif recompute[s]:
                recompute[s] -= 1
                at_recompute[s].append(forwards[s])
                found.append((backward, s))
            elif forward[s]:
                forward[s] -= 1
                forwards[s] += 1
                found.append((forward, s + 1) if s < num_stages - 1 else (backward, s))
        for queue, s in found:
            queue[s] += 1
    return tuple(tuple(zip(r or b, b, strict=True)) for r, b in zip(at_recompute, at_backward, strict=True))
