"""The event loop and the recurrence of static lists over arrays, for numba to compile; called by `compiled`.

Both do exactly what `event_loop` does: the ready-rule and the luck are the same function objects, sums and
maxima are taken in the same order. Nothing is allocated, and arrays stand in no tuple: counting references
would take longer than all the rest.
"""

import numpy as np
from numpy.typing import NDArray

from varuna_manager.planner.luck import ACTIVATION, drawn, luck
from varuna_runtime.spec.schedule import BACKWARD, FORWARD, INPUT, NO_LIST, RECOMPUTE, WAIT, WEIGHT, choose

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

DOWN, UP = 0, 1  # activations, gradients
NUM_MICRO, IN_FLIGHT, PENDING, RECOMPUTES, FIRST_MICRO, SHORT_MICRO = range(6)  # columns of `ranks`
WIRE, LATE_ROW, NUM_LATE = range(3)  # of `paths`
SERIAL_S, SHORT_S, LATENCY_S = range(3)  # of `delays`
NUM_KINDS = 5  # columns of `seconds`, and as many for a short micro-batch
COME, SENT, FORWARDS, RECOMPUTED, BACKWARDS, WEIGHTS, SENDING = 0, 2, 4, 5, 6, 7, 8  # of `state`
BY_RULE, LISTED, DEVIATES = range(3)
BEFORE = 1 - 1e-12
"""Sums of few times lose less than that by rounding."""


def static(
    num_stages: int,
    rule: int,
    seed: int,
    ahead_s: float,
    ranks: Ints,
    seconds: Floats,
    listed: Ints,
    paths: Ints,
    delays: Floats,
    late: Floats,
    factor: Floats,
    arrivals: Floats,
    state: Ints,
    wire_s: Floats,
    due_s: Floats,
    tree: Ints,
    free_s: Floats,
    ran: Ints,
) -> None:
    """Run one replica whose lists nothing deviates from; see `dynamic`.

    Each op starts at the later of its stage's last end and its message. One backward after the other: down
    the pipeline the forwards that each stage's list has before it, then up the pipeline the backward. A list
    that wants a forward which the stage before has behind this backward dead-locks.
    """
    num_micro = ranks[0, NUM_MICRO]
    state[0, SENT + DOWN] = num_micro
    for micro in range(num_micro):
        for at in range(2 * num_stages):
            stage = min(at, 2 * num_stages - 1 - at)
            forwards = state[stage, FORWARDS]
            most = min(num_micro, micro + ranks[stage, IN_FLIGHT])
            if most > state[stage, SENT + DOWN]:
                return
            while forwards < most:
                now_s = max(free_s[stage], arrivals[DOWN, forwards, stage])
                now_s = run(
                    stage, FORWARD, now_s, num_stages, seed, ranks, seconds, factor, state, free_s, ran
                )
                forwards += 1
                if stage + 1 < num_stages:
                    send(
                        stage,
                        DOWN,
                        now_s,
                        num_stages,
                        seed,
                        ranks,
                        paths,
                        delays,
                        late,
                        state,
                        arrivals,
                        wire_s,
                    )
            if at < num_stages:
                continue
            now_s = free_s[stage]
            if ranks[stage, RECOMPUTES] != 0:
                now_s = run(
                    stage, RECOMPUTE, now_s, num_stages, seed, ranks, seconds, factor, state, free_s, ran
                )
            now_s = max(now_s, arrivals[UP, micro, stage])
            now_s = run(stage, BACKWARD, now_s, num_stages, seed, ranks, seconds, factor, state, free_s, ran)
            if stage > 0:
                send(stage, UP, now_s, num_stages, seed, ranks, paths, delays, late, state, arrivals, wire_s)


def windowed(
    num_stages: int,
    rule: int,
    seed: int,
    ahead_s: float,
    ranks: Ints,
    seconds: Floats,
    listed: Ints,
    paths: Ints,
    delays: Floats,
    late: Floats,
    factor: Floats,
    arrivals: Floats,
    state: Ints,
    wire_s: Floats,
    due_s: Floats,
    tree: Ints,
    free_s: Floats,
    ran: Ints,
) -> None:
    """Run a group that shares no wire by events; see `dynamic`.

    No message arrives within `ahead_s` of the start of the op that it comes from. So what starts within that
    time of the next event can be run stage by stage: it depends on nothing else that starts then.
    """
    num_ranks = len(ranks)
    for rank in range(num_ranks):
        due_s[rank] = 0.0
        if rank % num_stages == 0:
            state[rank, COME + DOWN] = ranks[rank, NUM_MICRO]
    while True:
        next_s = np.inf
        for rank in range(num_ranks):
            next_s = min(next_s, due_s[rank])
        if next_s == np.inf:
            return
        until_s = (next_s + ahead_s) * BEFORE
        for rank in range(num_ranks):
            while due_s[rank] < until_s:
                now_s = due_s[rank]
                kind = look(rank, now_s, num_stages, rule, ranks, listed, state, arrivals)
                if kind == WAIT:
                    due_s[rank] = next_message(rank, state, arrivals)
                    continue
                now_s = run(rank, kind, now_s, num_stages, seed, ranks, seconds, factor, state, free_s, ran)
                due_s[rank] = now_s
                which = direction(rank, kind, num_stages, state)
                if which >= 0:
                    at_s = send(
                        rank,
                        which,
                        now_s,
                        num_stages,
                        seed,
                        ranks,
                        paths,
                        delays,
                        late,
                        state,
                        arrivals,
                        wire_s,
                    )
                    target = rank + 1 if which == DOWN else rank - 1
                    due_s[target] = min(due_s[target], max(at_s, free_s[target]))


def dynamic(
    num_stages: int,
    rule: int,
    seed: int,
    ahead_s: float,
    ranks: Ints,
    seconds: Floats,
    listed: Ints,
    paths: Ints,
    delays: Floats,
    late: Floats,
    factor: Floats,
    arrivals: Floats,
    state: Ints,
    wire_s: Floats,
    due_s: Floats,
    tree: Ints,
    free_s: Floats,
    ran: Ints,
) -> None:
    """Run a group by events; `free_s` gets the ends, `ran` the numbers of ops.

    A tournament keeps the next event: leaves from 0 are messages to hand over to a shared wire, from `looks`
    on the looks of the stages, so that equal times come in that order and then by rank.
    """
    num_ranks = len(ranks)
    looks = num_ranks if len(wire_s) > 2 * num_ranks else 0
    for rank in range(num_ranks):
        due_s[looks + rank] = 0.0
        replay(looks + rank, due_s, tree)
        if rank % num_stages == 0:
            state[rank, COME + DOWN] = ranks[rank, NUM_MICRO]
    while due_s[tree[1]] < np.inf:
        leaf = tree[1]
        now_s = due_s[leaf]
        rank, which = leaf - looks, -1
        if leaf < looks:
            rank, which = leaf, state[leaf, SENDING]
            due_s[leaf] = np.inf
        else:
            kind = look(rank, now_s, num_stages, rule, ranks, listed, state, arrivals)
            if kind == WAIT:
                due_s[leaf] = next_message(rank, state, arrivals)
            else:
                now_s = run(rank, kind, now_s, num_stages, seed, ranks, seconds, factor, state, free_s, ran)
                due_s[leaf] = now_s
                which = direction(rank, kind, num_stages, state)
                if which >= 0 and paths[rank, which, WIRE] >= 2 * num_ranks:
                    due_s[rank], state[rank, SENDING], which = now_s, which, -1
                    replay(rank, due_s, tree)
        replay(leaf, due_s, tree)
        if which >= 0:
            at_s = send(
                rank, which, now_s, num_stages, seed, ranks, paths, delays, late, state, arrivals, wire_s
            )
            target = rank + 1 if which == DOWN else rank - 1
            at_s = max(at_s, free_s[target])
            if at_s < due_s[looks + target]:
                due_s[looks + target] = at_s
                replay(looks + target, due_s, tree)


def run(
    rank: int,
    kind: int,
    now_s: float,
    num_stages: int,
    seed: int,
    ranks: Ints,
    seconds: Floats,
    factor: Floats,
    state: Ints,
    free_s: Floats,
    ran: Ints,
) -> float:
    """Run an op that starts now, and return its end."""
    micro = finish(rank, kind, state)
    op_s = seconds[rank, kind + NUM_KINDS if micro == ranks[rank, SHORT_MICRO] else kind]
    now_s += took(op_s, factor, seed, rank % num_stages, ranks[rank, FIRST_MICRO] + micro, kind)
    free_s[rank] = now_s
    ran[rank] += 1
    return now_s


def replay(leaf: int, due_s: Floats, tree: Ints) -> None:
    """Settle the games of a leaf whose time changed."""
    node = (len(due_s) + leaf) >> 1
    while node > 0:
        left, right = tree[2 * node], tree[2 * node + 1]
        winner = left if due_s[left] <= due_s[right] else right
        if winner == tree[node] and winner != leaf:
            return
        tree[node] = winner
        node >>= 1


def look(
    rank: int,
    now_s: float,
    num_stages: int,
    rule: int,
    ranks: Ints,
    listed: Ints,
    state: Ints,
    arrivals: Floats,
) -> int:
    """Take in what has come, and return the kind of the op to start."""
    for which in (DOWN, UP):
        come = state[rank, COME + which]
        while come < state[rank, SENT + which] and arrivals[which, come, rank] <= now_s:
            come += 1
        state[rank, COME + which] = come
    forwards, recomputes = state[rank, FORWARDS], state[rank, RECOMPUTED]
    backwards, gradients = state[rank, BACKWARDS], state[rank, COME + UP]
    if (rank + 1) % num_stages == 0:
        gradients = forwards  # a forward of the last stage brings its own
    num_micro, cap = ranks[rank, NUM_MICRO], ranks[rank, IN_FLIGHT]
    recompute = ranks[rank, RECOMPUTES] != 0
    head_forwards, head = NO_LIST, WAIT
    if rule != BY_RULE and backwards == num_micro:
        head_forwards = num_micro + 1
    elif rule != BY_RULE:
        head = RECOMPUTE if recompute and recomputes == backwards else BACKWARD
        head_forwards = num_micro
        if len(listed) > 0:
            head_forwards = listed[backwards, rank, 0 if head == RECOMPUTE else 1]
        head_forwards = min(head_forwards, backwards + cap)
    return choose(
        num_micro,
        cap,
        ranks[rank, PENDING],
        recompute,
        rule == DEVIATES,
        state[rank, COME + DOWN],
        gradients,
        forwards,
        recomputes,
        backwards,
        state[rank, WEIGHTS],
        head_forwards,
        head,
        backwards,
    )


def finish(rank: int, kind: int, state: Ints) -> int:
    """Count an op, and return its micro-batch."""
    column = BACKWARDS
    if kind == FORWARD:
        column = FORWARDS
    elif kind == RECOMPUTE:
        column = RECOMPUTED
    elif kind == WEIGHT:
        column = WEIGHTS
    micro: int = state[rank, column]
    state[rank, column] = micro + 1
    return micro


def took(seconds: float, factor: Floats, seed: int, stage: int, micro: int, kind: int) -> float:
    """Return the seconds of an op; without factors there is no luck."""
    if len(factor) == 0:
        return seconds
    return seconds * drawn(factor, luck(seed, stage, micro, kind))


def direction(rank: int, kind: int, num_stages: int, state: Ints) -> int:
    """Return where an op's message goes, -1 where there is none."""
    stage = rank % num_stages
    if kind == FORWARD:
        return DOWN if stage + 1 < num_stages else -1
    return UP if kind in (BACKWARD, INPUT) and stage > 0 else -1


def next_message(rank: int, state: Ints, arrivals: Floats) -> float:
    """Return when the next message comes to a stage, infinity if none was sent yet."""
    at_s: float = np.inf
    for which in (DOWN, UP):
        come = state[rank, COME + which]
        if come < state[rank, SENT + which]:
            at_s = min(at_s, arrivals[which, come, rank])
    return at_s


def send(
    rank: int,
    which: int,
    now_s: float,
    num_stages: int,
    seed: int,
    ranks: Ints,
    paths: Ints,
    delays: Floats,
    late: Floats,
    state: Ints,
    arrivals: Floats,
    wire_s: Floats,
) -> float:
    """Hand over a message, and return when it arrives."""
    target = rank + 1 if which == DOWN else rank - 1
    micro, wire = state[target, SENT + which], paths[rank, which, WIRE]
    serial_s = delays[rank, which, SHORT_S if micro == ranks[rank, SHORT_MICRO] else SERIAL_S]
    wire_s[wire] = max(wire_s[wire], now_s) + serial_s
    at_s: float = wire_s[wire] + delays[rank, which, LATENCY_S]
    num_late = paths[rank, which, NUM_LATE]
    if num_late > 0:
        boundary = rank % num_stages - which
        bits = luck(seed, boundary, ranks[rank, FIRST_MICRO] + micro, ACTIVATION + which)
        at_s += drawn(late[paths[rank, which, LATE_ROW], :num_late], bits)
        if micro > 0:
            at_s = max(at_s, arrivals[which, micro - 1, target])
    arrivals[which, micro, target] = at_s
    state[target, SENT + which] = micro + 1
    return at_s
