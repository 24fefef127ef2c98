"""The event loop over one group of replicas, as plain Python: for small simulations, pictures and tests.

A stage chooses when an op ends and, while idle, when a message comes. Messages occupy a direction of a link,
or the interface that they share with others, one after the other; compute never waits for a send.
"""

from collections import deque
from heapq import heappop, heappush
from math import inf

from varuna_manager.planner.groups import Group
from varuna_manager.planner.luck import ACTIVATION, GRADIENT, drawn, luck
from varuna_manager.planner.timing import OWN_LINK, Boundary, Pipeline, StageTiming
from varuna_runtime.spec.programs import program
from varuna_runtime.spec.schedule import KINDS, Op, OpKind, Program, State, next_op

SEND, LOOK = 0, 1  # of what happens at one moment, messages are handed over first
Due = list[tuple[float, int, int]]  # time, SEND or LOOK, rank


def programs_of(candidate: Pipeline, num_micro: int) -> tuple[Program, ...]:
    """Return the programs of a replica with `num_micro` micro-batches."""
    return tuple(
        program(
            candidate.schedule,
            stage=s,
            num_stages=len(candidate.stages),
            num_micro=num_micro,
            recompute=timing.recompute,
            in_flight=timing.in_flight,
        )
        for s, timing in enumerate(candidate.stages)
    )


def durations(timing: StageTiming) -> dict[OpKind, float]:
    """Return the seconds of each op of a stage."""
    input_s = timing.backward_s / 2 if timing.input_s is None else timing.input_s
    return {
        OpKind.FORWARD: timing.forward_s,
        OpKind.RECOMPUTE: timing.replay_s,
        OpKind.BACKWARD: timing.backward_s,
        OpKind.INPUT: input_s,
        OpKind.WEIGHT: timing.backward_s - input_s,
    }


def run(candidate: Pipeline, group: Group) -> list["StageRun"]:
    """Run all stages of all replicas of a group, by rank. Raises ValueError on a deadlock."""
    ranks = _ranks(candidate, group)
    due: Due = [(0.0, LOOK, r) for r in range(len(ranks))]
    while due:
        now_s, what, r = heappop(due)
        rank = ranks[r]
        if what == SEND:
            rank.hand_over(now_s, due)
        elif now_s == rank.due_s:  # or it was told to look earlier
            rank.look(now_s, due)
    refuse_deadlock([r for r, rank in enumerate(ranks) if rank.state.num_done < rank.todo.num_ops])
    return ranks


def refuse_deadlock(stuck: list[int]) -> None:
    """Raise where ranks did not do all their ops."""
    if stuck:
        raise ValueError(f"the schedule dead-locks: stages {stuck} wait for ever")


def _ranks(candidate: Pipeline, group: Group) -> list["StageRun"]:
    """Return the stages of all replicas, joined by their channels."""
    num_stages = len(candidate.stages)
    shared: dict[int, _Wire] = {}
    ranks: list[StageRun] = []
    for num_micro, first_micro, short in zip(
        group.micro_batches, group.first_micros, group.short_micros, strict=True
    ):
        for todo in programs_of(candidate, num_micro):
            ranks.append(StageRun(candidate, todo, len(ranks), first_micro, short, group.seed))
    for rank in ranks:
        s = rank.todo.stage
        wires = group.wires_of(rank.rank)
        if s + 1 < num_stages:
            rank.down = Channel(candidate, s, ranks[rank.rank + 1], ACTIVATION, wires[0], shared)
        if s > 0:
            rank.up = Channel(candidate, s - 1, ranks[rank.rank - 1], GRADIENT, wires[1], shared)
    return ranks


class StageRun:
    """One stage of one replica: `activations` and `gradients` are times of messages it has not seen yet."""

    def __init__(
        self,
        candidate: Pipeline,
        todo: Program,
        rank: int,
        first_micro: int,
        short_micro: int,
        seed: int | None,
    ) -> None:
        self.todo, self.rank, self.short_micro = todo, rank, short_micro
        self.state = State.start(todo)
        self.activations: deque[float] = deque()
        self.gradients: deque[float] = deque()
        self.free_s = 0.0
        self.due_s = 0.0  # when it looks next; infinity while it waits for what was not sent yet
        self.down: Channel | None = None
        self.up: Channel | None = None
        self.ran: list[tuple[Op, float, float]] = []  # with the times each starts and ends
        self._duration_s = durations(candidate.stages[todo.stage])
        self._factor, self._last_compute = candidate.compute_factor, candidate.last_compute
        self._first_micro, self._seed = first_micro, seed

    def look(self, now_s: float, due: Due) -> None:
        """Start an op if there is one; the next look is at its end, else at the next message."""
        state = self.state
        while self.activations and self.activations[0] <= now_s:
            self.activations.popleft()
            state.activations += 1
        while self.gradients and self.gradients[0] <= now_s:
            self.gradients.popleft()
            state.gradients += 1
        op = next_op(self.todo, state)
        if op is None:
            self.due_s = min([*list(self.activations)[:1], *list(self.gradients)[:1]], default=inf)
        else:
            state.finish(self.todo, op)
            self.free_s = self.due_s = now_s + self._seconds(op)
            self.ran.append((op, now_s, self.free_s))
            self._emit(op, due)
        if self.due_s < inf:
            heappush(due, (self.due_s, LOOK, self.rank))

    def _seconds(self, op: Op) -> float:
        seconds = self._duration_s[op.kind]
        if op.micro == self.short_micro:
            seconds *= self._last_compute
        if self._seed is None or not self._factor:
            return seconds
        micro, what = self._first_micro + op.micro, KINDS.index(op.kind)
        return seconds * drawn(self._factor, luck(self._seed, self.todo.stage, micro, what))

    def _emit(self, op: Op, due: Due) -> None:
        """Send what an op leaves; over an interface that others use too, only when its turn has come."""
        channel = self._channel(op)
        if channel is None:
            return
        if channel.is_shared:
            heappush(due, (self.free_s, SEND, self.rank))
        else:
            self.hand_over(self.free_s, due)

    def hand_over(self, now_s: float, due: Due) -> None:
        """Send the message of the op that ran last."""
        op, _, _ = self.ran[-1]
        channel = self._channel(op)
        assert channel is not None
        channel.send(now_s, op.micro, self._first_micro + op.micro, self._seed, due)

    def _channel(self, op: Op) -> "Channel | None":
        if op.kind is OpKind.FORWARD:
            return self.down
        return self.up if op.kind in (OpKind.BACKWARD, OpKind.INPUT) else None

    def hear(self, at_s: float, of: deque[float], due: Due) -> None:
        """Let a message arrive at `at_s`; an idle stage looks then."""
        of.append(at_s)
        look_s = max(at_s, self.free_s)
        if look_s < self.due_s:
            self.due_s = look_s
            heappush(due, (look_s, LOOK, self.rank))


class _Wire:
    """What messages occupy one after the other: one direction of a link, or a node's interface."""

    def __init__(self) -> None:
        self.free_s = 0.0


class Channel:
    """One direction between two stages; messages arrive in their order, so a late one holds up the next."""

    def __init__(
        self,
        candidate: Pipeline,
        boundary: int,
        target: StageRun,
        what: int,
        wire: int,
        shared: dict[int, _Wire],
    ) -> None:
        self._boundary: Boundary = candidate.boundaries[boundary]
        self._short_s = self._boundary.serial_s * candidate.last_bytes
        self._number, self._target, self._what = boundary, target, what
        self._queue = target.activations if what == ACTIVATION else target.gradients
        self.is_shared = wire != OWN_LINK
        self._wire = shared.setdefault(wire, _Wire()) if self.is_shared else _Wire()
        self._arrived_s = 0.0
        self.sent: list[tuple[int, float, float]] = []  # micro-batch, and when it occupied the wire

    def send(self, at_s: float, micro: int, global_micro: int, seed: int | None, due: Due) -> None:
        """Hand over a message at `at_s`."""
        wire, boundary = self._wire, self._boundary
        start_s = max(wire.free_s, at_s)
        wire.free_s = start_s + (self._short_s if micro == self._target.short_micro else boundary.serial_s)
        arrival_s = wire.free_s + boundary.latency_s
        if seed is not None and boundary.late_s:
            arrival_s += drawn(boundary.late_s, luck(seed, self._number, global_micro, self._what))
        self._arrived_s = max(self._arrived_s, arrival_s)
        self.sent.append((micro, start_s, wire.free_s))
        self._target.hear(self._arrived_s, self._queue, due)
