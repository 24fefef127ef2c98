"""Where to cut the model: an exact dynamic programme over (stages left, first segment) for a min-max cost."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from varuna_manager.planner.workload import Floats


class CutTable:
    """Best cuts for every number of stages, grown on demand.

    `cost(stages_left)` gives a matrix: entry [i, k] is the cost of the stage of segments [i, k) when it and
    those after it are `stages_left` stages, infinity where it is not allowed. The worst stage is minimised;
    ties go to the smaller sum of squares, then to the earlier cut.
    """

    def __init__(self, num_segments: int, cost: Callable[[int], Floats]) -> None:
        self._cost = cost
        self._last = num_segments
        self._costs: list[Floats] = []
        self._worst: list[Floats] = []
        self._squares: list[Floats] = []
        self._choice: list[NDArray[np.intp]] = []

    def worst(self, num_stages: int) -> float:
        """Return the least possible cost of the worst stage; infinity when no cut is allowed."""
        while len(self._worst) < num_stages:
            cost = self._cost(len(self._worst) + 1)
            self._costs.append(cost)
            self._worst.append(np.maximum(cost, self._worst[-1]).min(axis=1) if self._worst else cost[:, -1])
        return float(self._worst[num_stages - 1][0])

    def cuts(self, num_stages: int) -> tuple[tuple[int, int], ...]:
        """Return the stages as [first, last) pairs; only where `worst` is finite."""
        self.worst(num_stages)
        self._choose(num_stages)
        first, stages = 0, []
        for left in range(num_stages, 0, -1):
            last = int(self._choice[left - 1][first])
            stages.append((first, last))
            first = last
        return tuple(stages)

    def _choose(self, num_stages: int) -> None:
        while len(self._choice) < num_stages:
            left = len(self._choice)
            cost = self._costs[left]
            if left == 0:
                self._squares.append(cost[:, -1] ** 2)
                self._choice.append(np.full(self._last + 1, self._last))
                continue
            is_best = np.maximum(cost, self._worst[left - 1]) <= self._worst[left][:, None]
            squares = np.where(is_best, cost**2 + self._squares[-1], np.inf)
            self._squares.append(squares.min(axis=1))
            self._choice.append(squares.argmin(axis=1))


def intervals(num_segments: int) -> tuple[NDArray[np.intp], NDArray[np.intp], NDArray[np.bool_]]:
    """Return index grids (first, last) of all stages and the mask of those that hold a segment."""
    first = np.arange(num_segments + 1)[:, None]
    last = np.arange(num_segments + 1)[None, :]
    return first, last, first < last
