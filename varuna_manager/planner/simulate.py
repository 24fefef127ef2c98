"""Event-driven simulation of one step of a candidate, with the same programs and ready-rule as the engine.

Links are FIFO in each direction, compute never waits for a send, the first stage's data is always there.
"""

from collections import deque
from dataclasses import dataclass
from heapq import heappop, heappush
from math import inf

from varuna_manager.planner.pipeline import Boundary, Pipeline, StageTiming
from varuna_runtime.spec.programs import program
from varuna_runtime.spec.schedule import Op, OpKind, Program, State, next_op


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """Prediction for one step; `busy_s` is the mean over replicas of what a slot of that stage works."""

    step_s: float
    busy_s: tuple[float, ...]

    @property
    def bubble_share(self) -> float:
        """Idle share of a slot's time in the step."""
        return 1.0 - sum(self.busy_s) / (len(self.busy_s) * self.step_s) if self.step_s > 0 else 0.0


def simulate(candidate: Pipeline) -> Simulation:
    """Return the predicted step: all replicas, then per-stage reductions, agreement, optimizer."""
    ends = {n: stage_ends(candidate, n) for n in sorted(set(candidate.micro_batches))}
    stages = range(len(candidate.stages))
    reduced_s = max(max(end[s] for end in ends.values()) + candidate.stages[s].reduction_s for s in stages)
    return Simulation(
        step_s=reduced_s + candidate.agreement_s + max(stage.optimizer_s for stage in candidate.stages),
        busy_s=tuple(_busy_s(candidate, stage) for stage in candidate.stages),
    )


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


@dataclass(frozen=True, slots=True)
class TimedOp:
    """An op of a simulated step and when it runs, in seconds from the start of the step."""

    op: Op
    start_s: float
    end_s: float


def stage_ends(candidate: Pipeline, num_micro: int) -> tuple[float, ...]:
    """Return when each stage of a replica with `num_micro` micro-batches ends its last op."""
    return tuple(stage.free_s for stage in _run(candidate, num_micro))


def timeline(candidate: Pipeline, num_micro: int) -> tuple[tuple[TimedOp, ...], ...]:
    """Return what each stage of such a replica runs, in order."""
    return tuple(
        tuple(
            TimedOp(op, end_s - duration_s, end_s)
            for op, end_s in stage.ran
            for duration_s in (stage.duration_s[op.kind],)
        )
        for stage in _run(candidate, num_micro)
    )


def _run(candidate: Pipeline, num_micro: int) -> list["_StageRun"]:
    """Run all stages of one replica.

    Stages choose in order of time: when an op ends and, while idle, when a message comes. Raises ValueError
    on a deadlock.
    """
    programs = programs_of(candidate, num_micro)
    stages = [_StageRun(todo, timing) for todo, timing in zip(programs, candidate.stages, strict=True)]
    down = [_Channel(boundary) for boundary in candidate.boundaries]
    up = [_Channel(boundary) for boundary in candidate.boundaries]
    due = [(0.0, s) for s in range(len(stages))]
    while due:
        now_s, s = heappop(due)
        stage = stages[s]
        if now_s != stage.due_s:
            continue  # it was told to look earlier
        op = stage.choose(now_s)
        if op is not None and op.kind is OpKind.FORWARD and s < len(down):
            stages[s + 1].hear(down[s].send(stage.free_s), stages[s + 1].activations, due, s + 1)
        elif op is not None and op.kind in (OpKind.BACKWARD, OpKind.INPUT) and s > 0:
            stages[s - 1].hear(up[s - 1].send(stage.free_s), stages[s - 1].gradients, due, s - 1)
        if stage.due_s < inf:
            heappush(due, (stage.due_s, s))
    stuck = [s for s, stage in enumerate(stages) if stage.state.num_done < stage.todo.num_ops]
    if stuck:
        raise ValueError(f"the schedule dead-locks: stages {stuck} wait for ever")
    return stages


class _StageRun:
    """One stage: `activations` and `gradients` are the times of messages it does not know of yet."""

    def __init__(self, todo: Program, timing: StageTiming) -> None:
        self.todo = todo
        self.state = State.start(todo)
        self.activations: deque[float] = deque()
        self.gradients: deque[float] = deque()
        self.free_s = 0.0
        self.due_s = 0.0  # when it looks next; infinity while it waits for what was not sent yet
        self.duration_s = durations(timing)
        self.ran: list[tuple[Op, float]] = []  # with the time each ends

    def choose(self, now_s: float) -> Op | None:
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
            return None
        state.finish(self.todo, op)
        self.free_s = self.due_s = now_s + self.duration_s[op.kind]
        self.ran.append((op, self.free_s))
        return op

    def hear(self, at_s: float, of: deque[float], due: list[tuple[float, int]], index: int) -> None:
        """Let a message arrive at `at_s`; an idle stage looks then."""
        of.append(at_s)
        look_s = max(at_s, self.free_s)
        if look_s < self.due_s:
            self.due_s = look_s
            heappush(due, (look_s, index))


class _Channel:
    """One direction of a link: messages occupy it one after the other."""

    def __init__(self, boundary: Boundary) -> None:
        self._boundary = boundary
        self._free_s = 0.0

    def send(self, at_s: float) -> float:
        """Return when a message handed over at `at_s` arrives."""
        self._free_s = max(self._free_s, at_s) + self._boundary.serial_s
        return self._free_s + self._boundary.latency_s


def durations(timing: StageTiming) -> dict[OpKind, float]:
    """Return the seconds of each op of a stage; I and W are taken as halves of B."""
    half_s = timing.backward_s / 2
    return {
        OpKind.FORWARD: timing.forward_s,
        OpKind.RECOMPUTE: timing.forward_s,
        OpKind.BACKWARD: timing.backward_s,
        OpKind.INPUT: half_s,
        OpKind.WEIGHT: timing.backward_s - half_s,
    }


def _busy_s(candidate: Pipeline, stage: StageTiming) -> float:
    mean_micro = sum(candidate.micro_batches) / len(candidate.micro_batches)
    return mean_micro * stage.micro_s + stage.reduction_s + stage.optimizer_s
