"""An independent simulator of one replica: a heap of events, ops chosen by the rule as they happen."""

import heapq

from varuna_manager.planner.pipeline import Pipeline
from varuna_runtime.spec.schedule import Arrivals, Op, OpKind, next_op, program


def last_backward_ends(candidate: Pipeline, num_micro: int) -> tuple[float, ...]:
    """Return when each stage ends its last backward."""
    return _Replica(candidate, num_micro).run()


class _Replica:
    def __init__(self, candidate: Pipeline, num_micro: int) -> None:
        count = len(candidate.stages)
        self.candidate = candidate
        self.last = count - 1
        self.programs = [
            program(
                candidate.schedule,
                stage=s,
                num_stages=count,
                num_micro=num_micro,
                recompute=candidate.stages[s].recompute,
            )
            for s in range(count)
        ]
        self.done = [0] * count
        self.running: list[Op | None] = [None] * count
        self.acts = [num_micro] + [0] * (count - 1)
        self.grads = [0] * count
        self.ends = [0.0] * count
        self.link_free: dict[tuple[int, int], float] = {}
        self.events: list[tuple[float, int, str, int]] = []
        self.serial = 0

    def run(self) -> tuple[float, ...]:
        for stage in range(len(self.programs)):
            self._start(stage, 0.0)
        while self.events:
            now_s, _, what, stage = heapq.heappop(self.events)
            if what == "end":
                self._finish(stage, now_s)
            elif what == "act":
                self.acts[stage] += 1
            else:
                self.grads[stage] += 1
            self._start(stage, now_s)
        assert self.done == [len(ops) for ops in self.programs]
        return tuple(self.ends)

    def _push(self, at_s: float, what: str, stage: int) -> None:
        self.serial += 1
        heapq.heappush(self.events, (at_s, self.serial, what, stage))

    def _start(self, stage: int, now_s: float) -> None:
        if self.running[stage] is not None:
            return
        arrived = Arrivals(activations=self.acts[stage], gradients=self.grads[stage])
        op = next_op(self.programs[stage], self.done[stage], arrived)
        if op is None:
            return
        timing = self.candidate.stages[stage]
        self.running[stage] = op
        self._push(
            now_s + (timing.backward_s if op.kind is OpKind.BACKWARD else timing.forward_s), "end", stage
        )

    def _finish(self, stage: int, now_s: float) -> None:
        op = self.running[stage]
        assert op is not None
        self.running[stage] = None
        self.done[stage] += 1
        self.ends[stage] = now_s
        if op.kind is OpKind.FORWARD and stage == self.last:
            self.grads[stage] += 1
        elif op.kind is OpKind.FORWARD:
            self._message(stage, stage + 1, "act", now_s)
        elif op.kind is OpKind.BACKWARD and stage > 0:
            self._message(stage, stage - 1, "grad", now_s)

    def _message(self, source: int, target: int, what: str, now_s: float) -> None:
        boundary = self.candidate.boundaries[min(source, target)]
        free_s = max(self.link_free.get((source, target), 0.0), now_s) + boundary.serial_s
        self.link_free[(source, target)] = free_s
        self._push(free_s + boundary.latency_s, what, target)
