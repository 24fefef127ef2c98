"""What candidates are ranked by: a step time that also says what the step costs, or what losses take from it.

Less is better. A score falls with neither a longer step, nor more nodes, nor a higher price: the score of a
bound is a bound of the score.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, assert_never

import numpy as np

from varuna_manager.planner.layout_bounds import Ints
from varuna_manager.planner.outlook import UNSEEN, Draws, Outlook
from varuna_manager.planner.pools import SlotPool
from varuna_manager.planner.request import PlanRequest
from varuna_manager.planner.workload import Floats
from varuna_runtime.spec.job import Objective as Kind
from varuna_runtime.spec.layout import Layout

FREE = 1e-9
"""Dollars per hour that nodes cost at least: among free ones the fastest plan is the cheapest."""
HOPELESS = 1e-9
"""Share of its undisturbed progress that a plan is taken to make at least, so that scores are finite."""
SHORTEST_S = 1e-12
"""Steps are taken to last at least this long: nothing is divided by zero."""
CURVES_MAX = 16
"""Numbers of nodes for which losses are counted exactly when layouts are put in order; others round down."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Use:
    """What layouts take of a pool, one in each row."""

    num_nodes: Ints
    dollars_per_hour: Floats

    def row(self, index: int) -> "Use":
        """Return one row."""
        at = slice(index, index + 1)
        return Use(num_nodes=self.num_nodes[at], dollars_per_hour=self.dollars_per_hour[at])


class Objective(Protocol):
    """One way to rank."""

    def scores(self, step_s: Floats, use: Use) -> Floats:
        """Return a score for each step time and what it is run on."""
        ...

    def value(self, score: float, batch_size: int) -> float:
        """Return what a score is worth to people, more being better."""
        ...


class Throughput:
    """Samples per second."""

    def scores(self, step_s: Floats, use: Use) -> Floats:
        """Return the step times."""
        return step_s

    def value(self, score: float, batch_size: int) -> float:
        """Return samples per second."""
        return batch_size / max(score, SHORTEST_S)


class Cost:
    """Samples per dollar."""

    def scores(self, step_s: Floats, use: Use) -> Floats:
        """Return what a step costs: seconds times dollars per hour."""
        return step_s * np.maximum(use.dollars_per_hour, FREE)

    def value(self, score: float, batch_size: int) -> float:
        """Return samples per dollar."""
        return 3600 * batch_size / max(score, SHORTEST_S * FREE)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Curve:
    """Steps until the horizon by steps per second; straight between its points, flat after the last."""

    rate: Floats
    steps: Floats


class Progress:
    """Samples expected until the horizon, while nodes are lost.

    After a loss a job goes on as fast as before if spares step in, else as fast as the best plan for the
    nodes that are left, as far as the bounds of `steps_per_s` tell; never faster than before.
    """

    def __init__(self, outlook: Outlook, *, num_nodes: int, steps_per_s: Floats) -> None:
        """`steps_per_s[n]` is at least what any plan makes on n nodes; it must not fall with n."""
        self._outlook = outlook
        self._draws = Draws(outlook, num_nodes)
        self._steps_per_s = steps_per_s
        self._curves: dict[int, _Curve] = {}

    def scores(self, step_s: Floats, use: Use) -> Floats:
        """Return the horizon over the steps expected within it: the step time if nothing were ever lost."""
        rate = 1 / np.maximum(step_s, SHORTEST_S)
        num_nodes, row = np.unique(use.num_nodes, return_inverse=True)
        if len(num_nodes) > CURVES_MAX:
            fewer = num_nodes[np.linspace(0, len(num_nodes) - 1, CURVES_MAX).astype(np.int64)]
            num_nodes, row = fewer, np.searchsorted(fewer, use.num_nodes, side="right") - 1
        steps = np.empty_like(rate)
        for index, count in enumerate(num_nodes):
            curve, of_count = self._curve(int(count)), row == index
            steps[of_count] = np.interp(rate[of_count], curve.rate, curve.steps)
        horizon_s = self._outlook.horizon_s
        steps = np.maximum(steps, HOPELESS * rate * horizon_s)
        return np.divide(horizon_s, steps, out=np.full_like(rate, np.inf), where=rate > 0)

    def value(self, score: float, batch_size: int) -> float:
        """Return the samples expected until the horizon."""
        return self._outlook.horizon_s * batch_size / score

    def _curve(self, num_used: int) -> _Curve:
        if num_used not in self._curves:
            trained_s = self._draws.trained_s(num_used)
            left = np.flatnonzero(trained_s)
            rate = np.unique(np.concatenate([[0.0], self._steps_per_s[left]]))
            steps = np.minimum(rate[:, None], self._steps_per_s[left]) @ trained_s[left]
            self._curves[num_used] = _Curve(rate=rate, steps=steps)
        return self._curves[num_used]


def objective(request: PlanRequest, step_s: Floats, use: Use) -> Objective:
    """Return the job's objective; `step_s` bounds the layouts, one a row, `use` is the least they take."""
    match request.spec.objective:
        case Kind.THROUGHPUT:
            return Throughput()
        case Kind.COST:
            return Cost()
        case Kind.PROGRESS:
            # There are more than those asked for where the question is how many would be enough.
            num_nodes = max(len(request.nodes), int(use.num_nodes.max(initial=0)))
            steps_per_s = np.zeros(num_nodes + 1)
            np.maximum.at(steps_per_s, use.num_nodes, 1 / np.maximum(step_s, SHORTEST_S))
            return Progress(
                request.outlook or UNSEEN,
                num_nodes=num_nodes,
                steps_per_s=np.maximum.accumulate(steps_per_s),
            )
        case _:
            assert_never(request.spec.objective)


def least_use(num_slots: Ints, found: Sequence[SlotPool]) -> Use:
    """Return the fewest nodes and the lowest price on any pool with room, for as many slots each."""
    num_nodes = np.full(len(num_slots), np.iinfo(np.int64).max)
    dollars_per_hour = np.full(len(num_slots), np.inf)
    for pool in found:
        has_room = num_slots <= pool.num_slots
        units = -(-num_slots[has_room] // pool.unit_slots)
        last = np.searchsorted(pool.unit_ends, units)
        num_nodes[has_room] = np.minimum(num_nodes[has_room], last + 1)
        price = np.asarray(pool.price_ends)[last]
        dollars_per_hour[has_room] = np.minimum(dollars_per_hour[has_room], price)
    return Use(num_nodes=num_nodes, dollars_per_hour=dollars_per_hour)


def use_of(pool: SlotPool, layout: Layout) -> Use:
    """Return what one layout takes of one pool."""
    return Use(
        num_nodes=np.array([pool.num_nodes(layout)]),
        dollars_per_hour=np.array([pool.price_per_hour(layout)]),
    )
