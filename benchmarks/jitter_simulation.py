"""A pipeline with late messages in virtual time: the engine's ready-rule, and the draws of `jitter`."""

from collections import deque
from collections.abc import Callable, Sequence
from heapq import heappop, heappush

from varuna_runtime.spec.layout import ScheduleKind
from varuna_runtime.spec.programs import program
from varuna_runtime.spec.schedule import OpKind, Program, State, next_op

Late = Callable[[int, str, int], float]  # boundary, direction, index of the message -> seconds
Seconds = dict[OpKind, float]
DOWN, UP = "activations", "gradients"


def step_s(
    kind: ScheduleKind, *, num_stages: int, num_micro: int, seconds: Seconds, late: Late, recompute: bool
) -> float:
    """Return the time until the last stage's last op; links carry any number of messages at once."""
    stages = [
        _Stage(
            program(
                kind,
                stage=s,
                num_stages=num_stages,
                num_micro=num_micro,
                recompute=recompute and s < num_stages - 1,
            )
        )
        for s in range(num_stages)
    ]
    events = [(0.0, s) for s in range(num_stages)]
    while events:
        now_s, at = heappop(events)
        stage = stages[at]
        if now_s < stage.free_s:
            continue  # it looks again when it is free
        stage.listen(now_s)
        op = next_op(stage.program, stage.state)
        if op is None:
            continue
        stage.state.finish(stage.program, op)
        stage.free_s = now_s + seconds[op.kind]
        heappush(events, (stage.free_s, at))
        if op.kind is OpKind.FORWARD and at < num_stages - 1:
            due_s = stage.send(DOWN, late(at, DOWN, op.micro))
            stages[at + 1].coming[DOWN].append(due_s)
            heappush(events, (due_s, at + 1))
        elif op.kind in (OpKind.BACKWARD, OpKind.INPUT) and at > 0:
            due_s = stage.send(UP, late(at - 1, UP, op.micro))
            stages[at - 1].coming[UP].append(due_s)
            heappush(events, (due_s, at - 1))
    assert all(s.state.num_done == s.program.num_ops for s in stages), "dead-locked"
    return max(stage.free_s for stage in stages)


class _Stage:
    def __init__(self, todo: Program) -> None:
        self.program = todo
        self.state = State.start(todo)
        self.free_s = 0.0
        self.coming: dict[str, deque[float]] = {DOWN: deque(), UP: deque()}
        self._sent_s = {DOWN: 0.0, UP: 0.0}

    def send(self, direction: str, late_s: float) -> float:
        """Return when a message sent at the end of the op may be used: never before an earlier one."""
        self._sent_s[direction] = max(self._sent_s[direction], self.free_s + late_s)
        return self._sent_s[direction]

    def listen(self, now_s: float) -> None:
        """Count the messages that are here."""
        while self.coming[DOWN] and self.coming[DOWN][0] <= now_s:
            self.coming[DOWN].popleft()
            self.state.activations += 1
        while self.coming[UP] and self.coming[UP][0] <= now_s:
            self.coming[UP].popleft()
            self.state.gradients += 1


def speedups(ours: Sequence[float], theirs: Sequence[float]) -> list[float]:
    """Return their time over ours, draw by draw."""
    return [b / a for a, b in zip(ours, theirs, strict=True)]
