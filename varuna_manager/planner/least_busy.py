"""What stages put on a step at least, whatever the schedule: for bounds on every layout of a batch shape."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from varuna_manager.planner.cuts import CutTable
from varuna_manager.planner.grid import StageGrid
from varuna_manager.planner.memory import Residency
from varuna_manager.planner.workload import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class LeastKept:
    """What stages keep at least, with up to `replicas` replicas of `num_micro` micro-batches or more."""

    grid: StageGrid
    memory_bytes: int  # of a slot
    replicas: int
    gradient_copies: int
    num_micro: int


@lru_cache(maxsize=16)
def least_busy(kept: LeastKept) -> "LeastBusy":
    """Return the same object for equal questions, as long as few others come between."""
    return LeastBusy(kept)


class LeastBusy:
    """The least that stages put on a step beside the way to them and back, whatever the schedule.

    The memory taken for it is less than any of them keeps.
    """

    def __init__(self, kept: LeastKept) -> None:
        self._grid, self._memory_bytes, self._num_micro = kept.grid, kept.memory_bytes, kept.num_micro
        self._kept = Residency(gradient_copies=kept.gradient_copies, held=1, replicas=kept.replicas)
        self._table = CutTable(self._work_s)
        self._share_of = lru_cache(self._share_at)
        self._work_of = lru_cache(self._work_at)

    def micro_s(self, num_stages: int) -> float:
        """Return the work per micro-batch of the busiest of as many stages, at best."""
        return float(self._table.worst(num_stages)[0])

    def share_s(self, stages_left: int) -> Floats:
        """Return the work of stages which with those after them make `stages_left`.

        Or, where that is more, one micro-batch through all of these, then the backwards of the others.
        """
        return self._share_of(self._held(stages_left), stages_left == 1)

    def _share_at(self, held: int, is_last: bool) -> Floats:
        compute, num_micro = self._grid.work.compute_s, self._num_micro
        micro = self._work_of(held, is_last)
        others = (num_micro - 1) * (micro - self._grid.forward_s) if num_micro > 1 else 0.0
        return np.asarray(np.maximum(num_micro * micro, compute[-1] - compute[:, None] + others))

    def _work_s(self, stages_left: int) -> Floats:
        return self._work_of(self._held(stages_left), stages_left == 1)

    def _work_at(self, held: int, is_last: bool) -> Floats:
        return self._grid.micro_s(replace(self._kept, held=held), self._memory_bytes, is_last=is_last)

    def _held(self, stages_left: int) -> int:
        """Return a power of two that is no more than they hold: there are few of these."""
        return 1 << (min(stages_left, self._num_micro).bit_length() - 1)
