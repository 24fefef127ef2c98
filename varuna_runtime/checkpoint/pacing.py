"""How often to make a step durable: by what a save costs and how often work is lost; pure."""

import math
from collections import deque
from statistics import median

PRIOR_MTBF_S = 3600.0  # between two losses that memory does not mend, where nobody counts them
SHORTEST_S = 2.0
LONGEST_S = 600.0
ELAPSED_FACTOR = 3.0  # the background work of saves fills at most a third of the time
_NUM_STEPS = 33  # of which the usual duration of a step is the median
_OUTLIER = 4.0  # times the usual duration: not what a save does to a step


def interval_s(*, cost_s: float, elapsed_s: float, mtbf_s: float = PRIOR_MTBF_S) -> float:
    """Return the seconds from the begin of one save to that of the next.

    sqrt(2 x cost x MTBF) keeps the sum of both least: what saves cost, and what a loss makes run again (Young
    1974, Daly 2006). `cost_s` is what one save takes from training, `elapsed_s` how long it runs behind it:
    saves never overlap, and a result is never older than ten minutes for its own sake.
    """
    best_s = math.sqrt(2.0 * max(cost_s, 0.0) * mtbf_s)
    return max(min(max(best_s, SHORTEST_S), LONGEST_S), ELAPSED_FACTOR * elapsed_s)


class SaveCost:
    """What saves take from training: standing still, and slower steps while one runs behind them."""

    def __init__(self) -> None:
        self._usual: deque[float] = deque(maxlen=_NUM_STEPS)
        self._stall_s = self._slowdown_s = 0.0  # of the save under way

    def step(self, took_s: float, *, is_saving: bool) -> None:
        """A step took so long; with `is_saving` a save was under way."""
        if not is_saving:
            self._usual.append(took_s)
        elif self._usual and took_s < _OUTLIER * (usual_s := median(self._usual)):
            self._slowdown_s += took_s - usual_s

    def stalled(self, took_s: float) -> None:
        """Training stood still for the save under way."""
        self._stall_s += took_s

    def end(self) -> float:
        """A save ended: return what it cost, and start anew."""
        cost_s = self._stall_s + max(0.0, self._slowdown_s)
        self._stall_s = self._slowdown_s = 0.0
        return cost_s
