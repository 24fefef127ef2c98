"""Where to cut the model: an exact dynamic programme over (stages left, first segment) for a min-max cost."""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from varuna_manager.planner.workload import Floats


class CutTable:
    """Best cuts for every number of stages, grown on demand.

    `cost(stages_left)` gives a matrix: entry [i, k] is the cost of the stage that begins at the cut i and
    ends at the cut k when it and those after it are `stages_left` stages, infinity where it is not allowed.
    The last stage ends at the last cut. The worst stage is minimised; ties go to the smaller sum of squares,
    then to the earlier cut.
    """

    def __init__(self, cost: Callable[[int], Floats]) -> None:
        self._cost = cost
        self._worst: list[Floats] = []
        self._squares: list[Floats] = []
        self._choice: list[NDArray[np.intp]] = []

    def worst(self, num_stages: int) -> Floats:
        """Return by first cut the least cost of the worst stage; infinity when no cuts are allowed."""
        while len(self._worst) < num_stages:
            cost = self._cost(len(self._worst) + 1)
            self._worst.append(np.maximum(cost, self._worst[-1]).min(axis=1) if self._worst else cost[:, -1])
        return self._worst[num_stages - 1]

    def squares(self, num_stages: int) -> Floats:
        """Return by first cut the sum of the squares of the costs of the best stages."""
        self._choose(num_stages)
        return self._squares[num_stages - 1]

    def cuts(self, num_stages: int, first: int = 0) -> tuple[int, ...]:
        """Return where the stages end, the first of which begins at `first`; only where `worst` is finite."""
        self._choose(num_stages)
        ends = []
        for choice in self._choice[num_stages - 1 :: -1]:
            first = int(choice[first])
            ends.append(first)
        return tuple(ends)

    def _choose(self, num_stages: int) -> None:
        self.worst(num_stages)
        while len(self._choice) < num_stages:
            left = len(self._choice)
            cost = self._cost(left + 1)
            if left == 0:
                self._squares.append(cost[:, -1] ** 2)
                self._choice.append(np.full(len(cost), cost.shape[1] - 1))
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
