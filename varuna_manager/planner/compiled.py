"""A group of replicas as arrays, and numba's compilation of what runs them, imported when first wanted."""

from collections.abc import Callable
from functools import lru_cache
from hashlib import sha256
from itertools import pairwise
from math import inf
from typing import Any, NamedTuple

import numpy as np

from varuna_manager.planner import kernel
from varuna_manager.planner.event_loop import durations, refuse_deadlock
from varuna_manager.planner.groups import Group
from varuna_manager.planner.kernel import (
    BY_RULE,
    DEVIATES,
    LISTED,
    NUM_MICRO,
    PENDING,
    RECOMPUTES,
    Floats,
    Ints,
)
from varuna_manager.planner.luck import drawn, luck
from varuna_manager.planner.timing import OWN_LINK, Pipeline
from varuna_runtime.spec.layout import ScheduleKind
from varuna_runtime.spec.programs import in_flight_cap, most_pending, unit_time_lists
from varuna_runtime.spec.schedule import OpKind, choose

Kernel = Callable[..., None]  # of all fields of a task


class Task(NamedTuple):
    """A group of replicas, as the arguments of a kernel. Ranks go replica by replica."""

    num_stages: int
    rule: int
    seed: int
    ahead_s: float  # no message arrives sooner after the start of its op; 0: not known to be worth a window
    ranks: Ints
    seconds: Floats  # by rank and kind of op, then the same of a short micro-batch
    listed: Ints  # by micro-batch, rank, R or B: forwards before it whatever the cap; empty: all
    paths: Ints  # by rank and direction
    delays: Floats  # by rank and direction
    late: Floats  # rows of quantiles
    factor: Floats  # empty: no luck
    arrivals: Floats  # of messages, by direction, micro-batch, rank
    state: Ints  # by rank
    wire_s: Floats  # when each is free: two of each rank, then the shared ones
    due_s: Floats
    tree: Ints
    free_s: Floats  # in the end, when each rank ended its last op
    ran: Ints  # in the end, the number of ops of each rank


SPANS_MAX = 20
"""The kernel `windowed` goes through all ranks once a span; with more spans an op, a tournament is faster."""

PARTS: tuple[Any, ...] = (
    choose,
    luck,
    drawn,
    kernel.took,
    kernel.finish,
    kernel.direction,
    kernel.next_message,
    kernel.send,
    kernel.look,
    kernel.replay,
    kernel.run,
    kernel.static,
    kernel.windowed,
    kernel.dynamic,
)
"""All that is compiled, callees first."""

RULES = {
    ScheduleKind.GPIPE: LISTED,
    ScheduleKind.ONE_F_ONE_B: LISTED,
    ScheduleKind.EAGER: LISTED,
    ScheduleKind.VARUNA: DEVIATES,
    ScheduleKind.WORK_CONSERVING: BY_RULE,
    ScheduleKind.ZERO_BUBBLE: BY_RULE,
}


def ends(candidate: Pipeline, group: Group) -> list[float]:
    """Return when each rank of a group ends its last op, equal to what `event_loop` gives.

    Raises ValueError on a deadlock, and ImportError where numba is missing.
    """
    task = task_of(candidate, group)
    _compiled(_loop(task))(*task)
    per_micro = 2 + task.ranks[:, RECOMPUTES] + (task.ranks[:, PENDING] > 0)
    refuse_deadlock(np.flatnonzero(task.ran < task.ranks[:, NUM_MICRO] * per_micro).tolist())
    return [float(end_s) for end_s in task.free_s]


def is_loaded() -> bool:
    """Return whether numba is there and compiles what is asked for; results do not depend on it."""
    return _compiled.cache_info().currsize > 0


def _loop(task: Task) -> Kernel:
    """Return the fastest of the loops that can run a task."""
    is_shared = len(task.wire_s) > 2 * len(task.ranks)
    if task.rule == LISTED and len(task.ranks) == task.num_stages and not is_shared:
        return kernel.static
    return kernel.windowed if task.ahead_s > 0 else kernel.dynamic


@lru_cache(maxsize=3)
def _compiled(loop: Kernel) -> Kernel:
    """Return a compiled loop; the first call costs an import, and once a compilation.

    The ready-rule and all that the kernels call become part of them, wherever it stands: so the key of the
    cache on disk is a digest of all of them, where numba alone would look at the date of one file.
    """
    return _cached(_numba(), loop, _digest())


@lru_cache(maxsize=1)
def _numba() -> Any:
    """Return numba, told to compile all parts into what calls them.

    With `_nrt` off, nobody counts references to arrays, which takes ten times as long as the rest.
    """
    import numba
    from numba.extending import register_jitable

    for part in PARTS:
        register_jitable(forceinline=True, _nrt=False)(part)
    return numba


def _cached(numba: Any, loop: Kernel, digest: str) -> Kernel:
    def run(*arguments: Any) -> None:
        _ = digest  # what a function encloses is part of numba's key
        loop(*arguments)

    try:
        compiled: Kernel = numba.njit(cache=True, _nrt=False)(run)
    except RuntimeError:  # no folder can be written: compile for this process alone
        compiled = numba.njit(_nrt=False)(run)
    return compiled


def _digest() -> str:
    parts = (
        (f.__name__, f.__code__.co_code.hex(), repr(f.__code__.co_consts), f.__code__.co_names) for f in PARTS
    )
    numbers = sorted((name, n) for name, n in vars(kernel).items() if isinstance(n, int | float))
    return sha256(repr((tuple(parts), numbers)).encode()).hexdigest()


def task_of(candidate: Pipeline, group: Group) -> Task:
    """Return a group of a candidate's replicas as arrays."""
    num_stages, replicas = len(candidate.stages), len(group.micro_batches)
    num_ranks, num_shared = num_stages * replicas, 1 + max(map(max, group.wires), default=OWN_LINK)
    size = 2 ** max(1, (num_ranks * (2 if num_shared else 1) - 1).bit_length())
    has_luck = group.seed is not None
    ranks = [
        _rows(candidate, *replica)
        for replica in zip(group.micro_batches, group.first_micros, group.short_micros, strict=True)
    ]
    seconds = np.array([list(durations(stage).values()) for stage in candidate.stages])
    seconds = np.concatenate((seconds, seconds * candidate.last_compute), axis=1)
    late = sorted({boundary.late_s for boundary in candidate.boundaries if has_luck and boundary.late_s})
    return Task(
        num_stages=num_stages,
        rule=RULES[candidate.schedule],
        seed=group.seed or 0,
        ahead_s=_ahead_s(candidate, group),
        ranks=np.array(ranks, np.int64).reshape(num_ranks, -1),
        seconds=np.tile(seconds, (replicas, 1)),
        listed=_listed(candidate, group),
        paths=_paths(candidate, group, late),
        delays=np.tile(_delays(candidate), (replicas, 1, 1)),
        late=_padded(late),
        factor=np.array(candidate.compute_factor if has_luck else (), np.float64),
        # Rows of a length that is a power of two would fall on the same lines of the cache.
        arrivals=np.zeros((2, max(group.micro_batches), num_ranks | 1)),
        state=np.zeros((num_ranks, 9), np.int64),
        wire_s=np.zeros(2 * num_ranks + num_shared),
        due_s=np.full(size, np.inf),
        tree=_tree(size).copy(),
        free_s=np.zeros(num_ranks),
        ran=np.zeros(num_ranks, np.int64),
    )


def _ahead_s(candidate: Pipeline, group: Group) -> float:
    """Return the least time from the start of an op to the arrival of its message.

    0 where ranks share wires, or where other times are so much longer that there would be many such spans;
    nor does a list that nothing deviates from ask for it.
    """
    if group.wires or (RULES[candidate.schedule] == LISTED and len(group.micro_batches) == 1):
        return 0.0
    has_luck = group.seed is not None
    factor = min(candidate.compute_factor, default=1.0) if has_luck else 1.0
    ahead_s, longest_s = inf, max(stage.micro_s for stage in candidate.stages)
    for boundary, (before, after) in zip(candidate.boundaries, pairwise(candidate.stages), strict=True):
        late_s = boundary.late_s if has_luck and boundary.late_s else (0.0,)
        longest_s = max(longest_s, boundary.delay_s + max(late_s))
        op_s = min(before.forward_s, after.backward_s, durations(after)[OpKind.INPUT])
        op_s *= factor * min(candidate.last_compute, 1.0)
        serial_s = boundary.serial_s * min(candidate.last_bytes, 1.0)
        ahead_s = min(ahead_s, op_s + serial_s + boundary.latency_s + min(late_s))
    return 0.0 if longest_s > SPANS_MAX * ahead_s else ahead_s


@lru_cache(maxsize=16)
def _tree(size: int) -> Ints:
    """Return a tournament of equals: the leftmost leaf of each node."""
    tree = np.arange(2 * size) - size
    for node in range(size - 1, 0, -1):
        tree[node] = tree[2 * node]
    return tree


def _rows(candidate: Pipeline, num_micro: int, first_micro: int, short_micro: int) -> list[tuple[int, ...]]:
    """Return what `kernel` wants to know of each stage of a replica, as `spec.programs` has it."""
    kind, num_stages = candidate.schedule, len(candidate.stages)
    pending = most_pending(kind, num_stages=num_stages, num_micro=num_micro)
    rows: list[tuple[int, ...]] = []
    for s, stage in enumerate(candidate.stages):
        cap = in_flight_cap(kind, stages_left=num_stages - s, num_micro=num_micro, in_flight=stage.in_flight)
        rows.append((num_micro, cap, pending, int(stage.recompute), first_micro, short_micro))
    return rows


def _listed(candidate: Pipeline, group: Group) -> Ints:
    if candidate.schedule is not ScheduleKind.VARUNA:
        return np.zeros((0, 0, 2), np.int64)
    num_stages, most = len(candidate.stages), max(group.micro_batches)
    listed = np.zeros((most, num_stages * len(group.micro_batches), 2), np.int64)
    for replica, num_micro in enumerate(group.micro_batches):
        at = replica * num_stages
        listed[:num_micro, at : at + num_stages] = _unit_time(num_stages, num_micro)
    return listed


@lru_cache(maxsize=64)
def _unit_time(num_stages: int, num_micro: int) -> Ints:
    return np.array(unit_time_lists(num_stages, num_micro), np.int64).transpose(1, 0, 2)


def _paths(candidate: Pipeline, group: Group, late: list[tuple[float, ...]]) -> Ints:
    """Return the wire of each rank's messages, their row of `late`, and the number of its quantiles."""
    num_stages = len(candidate.stages)
    num_ranks = num_stages * len(group.micro_batches)
    paths = np.zeros((num_ranks, 2, 3), np.int64)
    paths[:, :, kernel.WIRE] = np.arange(2 * num_ranks).reshape(-1, 2)
    if group.wires:
        wires = np.array(group.wires, np.int64)
        paths[:, :, kernel.WIRE] = np.where(
            wires == OWN_LINK, paths[:, :, kernel.WIRE], 2 * num_ranks + wires
        )
    for s, boundary in enumerate(candidate.boundaries):
        if late and boundary.late_s:
            entry = late.index(boundary.late_s), len(boundary.late_s)
            paths[s::num_stages, kernel.DOWN, 1:] = paths[s + 1 :: num_stages, kernel.UP, 1:] = entry
    return paths


def _delays(candidate: Pipeline) -> Floats:
    """Return what messages of each stage take, down and up."""
    between = [(b.serial_s, b.serial_s * candidate.last_bytes, b.latency_s) for b in candidate.boundaries]
    of = np.array([(0.0, 0.0, 0.0), *between, (0.0, 0.0, 0.0)])
    return np.stack((of[1:], of[:-1]), axis=1)


def _padded(rows: list[tuple[float, ...]]) -> Floats:
    table = np.zeros((len(rows), max(map(len, rows), default=0)))
    for at, row in enumerate(rows):
        table[at, : len(row)] = row
    return table
