"""An independent simulator of one replica: a heap of events, ops chosen by the rule as they happen."""

import heapq

from varuna_manager.planner.event_loop import durations, programs_of
from varuna_manager.planner.pipeline import Pipeline
from varuna_runtime.spec.schedule import Op, OpKind, State, next_op


def stage_ends(candidate: Pipeline, num_micro: int) -> tuple[float, ...]:
    """Return when each stage ends its last op."""
    return _Replica(candidate, num_micro).run()


class _Replica:
    def __init__(self, candidate: Pipeline, num_micro: int) -> None:
        count = len(candidate.stages)
        self.candidate = candidate
        self.last = count - 1
        self.programs = programs_of(candidate, num_micro)
        self.states = [State.start(todo) for todo in self.programs]
        self.running: list[Op | None] = [None] * count
        self.ends = [0.0] * count
        self.link_free: dict[tuple[int, int], float] = {}
        self.events: list[tuple[float, int, str, int]] = []
        self.serial = 0

    def run(self) -> tuple[float, ...]:
        for stage in range(len(self.programs)):
            self._start(stage, 0.0)
        while self.events:
            now_s, touched = self.events[0][0], set()
            while self.events and self.events[0][0] == now_s:  # all that happens now, then the choices
                _, _, what, stage = heapq.heappop(self.events)
                touched.add(stage)
                if what == "end":
                    self._finish(stage, now_s)
                elif what == "act":
                    self.states[stage].activations += 1
                else:
                    self.states[stage].gradients += 1
            for stage in sorted(touched):
                self._start(stage, now_s)
        assert [state.num_done for state in self.states] == [todo.num_ops for todo in self.programs]
        return tuple(self.ends)

    def _push(self, at_s: float, what: str, stage: int) -> None:
        self.serial += 1
        heapq.heappush(self.events, (at_s, self.serial, what, stage))

    def _start(self, stage: int, now_s: float) -> None:
        if self.running[stage] is not None:
            return
        op = next_op(self.programs[stage], self.states[stage])
        if op is None:
            return
        self.running[stage] = op
        self._push(now_s + durations(self.candidate.stages[stage])[op.kind], "end", stage)

    def _finish(self, stage: int, now_s: float) -> None:
        op = self.running[stage]
        assert op is not None
        self.running[stage] = None
        self.states[stage].finish(self.programs[stage], op)
        self.ends[stage] = now_s
        if op.kind is OpKind.FORWARD and stage < self.last:
            self._message(stage, stage + 1, "act", now_s)
        elif op.kind in (OpKind.BACKWARD, OpKind.INPUT) and stage > 0:
            self._message(stage, stage - 1, "grad", now_s)

    def _message(self, source: int, target: int, what: str, now_s: float) -> None:
        boundary = self.candidate.boundaries[min(source, target)]
        free_s = max(self.link_free.get((source, target), 0.0), now_s) + boundary.serial_s
        self.link_free[(source, target)] = free_s
        self._push(free_s + boundary.latency_s, what, target)
