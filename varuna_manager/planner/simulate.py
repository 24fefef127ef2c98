"""Event-driven simulation of one step of a candidate, with the same programs and ready-rule as the engine.

Links are FIFO in each direction, compute never waits for a send, the first stage's data is always there.
"""

from collections import deque
from dataclasses import dataclass
from functools import lru_cache

from varuna_manager.planner.pipeline import Boundary, Pipeline, StageTiming
from varuna_runtime.spec.layout import ScheduleKind
from varuna_runtime.spec.schedule import Arrivals, Op, OpKind, next_op, program


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
    ends = {n: last_backward_ends(candidate, n) for n in sorted(set(candidate.micro_batches))}
    stages = range(len(candidate.stages))
    reduced_s = max(max(end[s] for end in ends.values()) + candidate.stages[s].reduction_s for s in stages)
    return Simulation(
        step_s=reduced_s + candidate.agreement_s + max(stage.optimizer_s for stage in candidate.stages),
        busy_s=tuple(_busy_s(candidate, stage) for stage in candidate.stages),
    )


def last_backward_ends(candidate: Pipeline, num_micro: int) -> tuple[float, ...]:
    """Return when each stage of a replica with `num_micro` micro-batches ends its last backward.

    Programs are static, so an op starts as soon as the previous one and its message are there: one pass over
    the ops in dependency order gives the same times as an event queue. Raises ValueError on a deadlock.
    """
    stages = [_StageRun(candidate, s, num_micro) for s in range(len(candidate.stages))]
    pending = deque(range(len(stages)))
    while pending:
        at = pending.popleft()
        for neighbour in stages[at].run(stages):
            if neighbour not in pending:
                pending.append(neighbour)
    stuck = [s for s, stage in enumerate(stages) if stage.done < len(stage.ops)]
    if stuck:
        raise ValueError(f"the schedule dead-locks: stages {stuck} wait for ever")
    return tuple(stage.free_s for stage in stages)


class _StageRun:
    """Progress of one stage: message arrival times, known in order, and the time it is free."""

    def __init__(self, candidate: Pipeline, stage: int, num_micro: int) -> None:
        timing = candidate.stages[stage]
        count = len(candidate.stages)
        self.ops = _ops(candidate.schedule, stage, count, num_micro, timing.recompute)
        self.done = 0
        self.free_s = 0.0
        self._index, self._is_last = stage, stage == count - 1
        self._duration_s = _durations(timing)
        self.activations = [0.0] * num_micro if stage == 0 else []
        self.gradients: list[float] = []
        self._down = None if self._is_last else _Channel(candidate.boundaries[stage])
        self._up = None if stage == 0 else _Channel(candidate.boundaries[stage - 1])

    def run(self, stages: list["_StageRun"]) -> set[int]:
        """Run every op whose message time is known; return the stages that got messages."""
        woken: set[int] = set()
        while (op := next_op(self.ops, self.done, self._arrived())) is not None:
            self.free_s = max(self.free_s, self._available_s(op)) + self._duration_s[op.kind]
            self.done += 1
            target = self._emit(op, stages)
            if target is not None:
                woken.add(target)
        return woken

    def _arrived(self) -> Arrivals:
        return Arrivals(activations=len(self.activations), gradients=len(self.gradients))

    def _available_s(self, op: Op) -> float:
        match op.kind:
            case OpKind.FORWARD:
                return self.activations[op.micro]
            case OpKind.BACKWARD:
                return self.gradients[op.micro]
            case OpKind.RECOMPUTE:
                return 0.0

    def _emit(self, op: Op, stages: list["_StageRun"]) -> int | None:
        if op.kind is OpKind.FORWARD and self._is_last:
            self.gradients.append(self.free_s)
        elif op.kind is OpKind.FORWARD and self._down is not None:
            stages[self._index + 1].activations.append(self._down.send(self.free_s))
            return self._index + 1
        elif op.kind is OpKind.BACKWARD and self._up is not None:
            stages[self._index - 1].gradients.append(self._up.send(self.free_s))
            return self._index - 1
        return None


class _Channel:
    """One direction of a link: messages occupy it one after the other."""

    def __init__(self, boundary: Boundary) -> None:
        self._boundary = boundary
        self._free_s = 0.0

    def send(self, at_s: float) -> float:
        """Return when a message handed over at `at_s` arrives."""
        self._free_s = max(self._free_s, at_s) + self._boundary.serial_s
        return self._free_s + self._boundary.latency_s


@lru_cache(maxsize=4096)
def _ops(kind: ScheduleKind, stage: int, num_stages: int, num_micro: int, recompute: bool) -> tuple[Op, ...]:
    return program(kind, stage=stage, num_stages=num_stages, num_micro=num_micro, recompute=recompute)


def _durations(timing: StageTiming) -> dict[OpKind, float]:
    return {
        OpKind.FORWARD: timing.forward_s,
        OpKind.RECOMPUTE: timing.forward_s,
        OpKind.BACKWARD: timing.backward_s,
    }


def _busy_s(candidate: Pipeline, stage: StageTiming) -> float:
    mean_micro = sum(candidate.micro_batches) / len(candidate.micro_batches)
    return mean_micro * stage.micro_s + stage.reduction_s + stage.optimizer_s
