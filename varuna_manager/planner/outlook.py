"""What is to be expected of a pool: how often its nodes are lost, how many at once, and what that costs."""

from dataclasses import dataclass
from math import ceil, inf, sqrt

import numpy as np
from numpy.typing import NDArray

from varuna_manager.planner.workload import Floats
from varuna_runtime.spec.errors import InvalidInput

NUM_DRAWS = 128
MOMENTS_MAX = 256
"""Moments of loss that are looked at in one draw; a pool that sees more within the horizon is hopeless."""
PRIOR_LOSSES = 0.1
PRIOR_NODE_S = 3600.0
"""What a pool is taken to have seen before it was watched: a Gamma prior, with a mean of a loss in 10 hours
of a node. Recorded spot pools lose a node in 1 to 20 hours; the prior weighs as an hour of a node, so that
a pool which is much worse is known for that after minutes."""

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_KEPT, _WHEN, _SIZE, _WHERE = range(4)  # streams of luck


@dataclass(frozen=True, slots=True, kw_only=True)
class LossRate:
    """How often nodes are lost, and how many at once."""

    per_node_s: float
    burst_weights: tuple[float, ...] = (1.0,)  # how often 1, 2, ... nodes are lost together

    def __post_init__(self) -> None:
        """Refuse what is no chance."""
        numbers = (self.per_node_s, *self.burst_weights)
        if not all(0 <= number < inf for number in numbers) or sum(self.burst_weights) <= 0:
            raise InvalidInput(f"loss rate: seen {self}, wanted numbers from 0 on and a weight above it")

    def moments_per_s(self, num_nodes: int, *, at_least: int = 1, doubt: float = 0.0) -> float:
        """Return how often a pool loses `at_least` so many nodes at once, of moments per second.

        `doubt` is how many moments count as such a burst beside those seen.
        """
        seen = sum(self.burst_weights)
        share = (sum(self.burst_weights[at_least - 1 :]) + doubt) / (seen + doubt)
        return self.per_node_s * num_nodes / self.mean_burst * min(1.0, share)

    @property
    def mean_burst(self) -> float:
        """Nodes lost at one moment, in the mean."""
        sizes = np.arange(1, len(self.burst_weights) + 1)
        return float(np.average(sizes, weights=self.burst_weights))


@dataclass(frozen=True, slots=True, kw_only=True)
class Outlook:
    """Losses ahead, and nothing else: nodes that may come are not counted on."""

    losses: LossRate
    horizon_s: float = 1800.0
    morph_s: float = 2.0  # nothing is trained for that long after a loss
    replay_s: float = 0.0  # what is trained once more after a loss without a notice
    notice_s: float = 0.0  # how long before its end a node is warned

    def __post_init__(self) -> None:
        """Refuse what is no time."""
        if min(self.morph_s, self.replay_s, self.notice_s) < 0 or self.horizon_s <= 0:
            raise InvalidInput(f"outlook: seen {self}, wanted a horizon above 0 s and no time below it")

    @property
    def pause_s(self) -> float:
        """What a loss costs; a notice that is long enough for the morph saves the work under way."""
        return self.morph_s if self.notice_s > self.morph_s else self.morph_s + self.replay_s


def estimated(num_losses: float, node_s: float) -> float:
    """Return the losses to expect per second of a node after these in as many seconds of nodes."""
    return (PRIOR_LOSSES + num_losses) / (PRIOR_NODE_S + node_s)


UNSEEN = Outlook(losses=LossRate(per_node_s=estimated(0, 0)))
"""Of a pool that was never watched."""


class Draws:
    """What may befall a pool of `num_nodes`, drawn `NUM_DRAWS` times; the same for whatever is planned there.

    Draws are nested: those of a higher rate have all the moments of a lower one, at the same times, and more.
    A moment takes nodes that stand next to each other in the order of use, wherever they begin. As many
    moments come when nodes are few as when all were there: a pool fills up again.
    """

    def __init__(self, outlook: Outlook, num_nodes: int) -> None:
        losses = outlook.losses
        expected = losses.per_node_s * num_nodes * outlook.horizon_s / losses.mean_burst
        num = min(MOMENTS_MAX, ceil(expected + 6 * sqrt(expected) + 6))
        mark = np.cumsum(-np.log1p(-_uniform(_KEPT, num)), axis=1)
        at_s = np.where(mark < expected, _uniform(_WHEN, num) * outlook.horizon_s, outlook.horizon_s)
        share = np.cumsum(losses.burst_weights) / sum(losses.burst_weights)
        size = 1 + np.searchsorted(share[:-1], _uniform(_SIZE, num), side="right")
        size = np.where(mark < expected, size, 0)
        order = np.argsort(at_s, axis=1, kind="stable")
        at_s, size, where = (
            np.take_along_axis(a, order, axis=1) for a in (at_s, size, _uniform(_WHERE, num))
        )
        left = np.maximum(0, num_nodes - np.cumsum(size, axis=1))
        self._left = np.concatenate([np.full((NUM_DRAWS, 1), num_nodes), left], axis=1)
        before = self._left[:, :-1]
        first = (where * before).astype(np.int64)
        wraps = before - first < size  # takes the first node too
        self._first = np.where(size > 0, np.where(wraps, 0, first), num_nodes)
        edge = np.full((NUM_DRAWS, 1), outlook.horizon_s)
        self._bounds_s = np.concatenate([np.zeros((NUM_DRAWS, 1)), at_s, edge], axis=1)
        self._num_nodes, self._pause_s = num_nodes, outlook.pause_s

    def trained_s(self, num_used: int) -> Floats:
        """Return for 0, 1, ... all nodes left how long a job on `num_used` trains, in the mean.

        It uses the first ones that are left; when one of them is lost it pauses, and spares step in.
        """
        at_s = self._bounds_s[:, :-1]
        resumes_s = np.where(self._first < num_used, at_s[:, 1:] + self._pause_s, 0.0)
        resumes_s = np.maximum.accumulate(np.pad(resumes_s, ((0, 0), (1, 0))), axis=1)
        trained_s = np.maximum(0.0, self._bounds_s[:, 1:] - np.maximum(at_s, resumes_s))
        total_s = np.bincount(self._left.ravel(), weights=trained_s.ravel(), minlength=self._num_nodes + 1)
        return np.asarray(total_s / NUM_DRAWS)


def _uniform(stream: int, num: int) -> Floats:
    """Return (NUM_DRAWS, num) numbers in [0, 1), each a function of stream, draw and place alone.

    SplitMix64 of a counter (Steele, Lea and Flood 2014), so that no library's generator is depended on.
    """
    draw = np.arange(NUM_DRAWS, dtype=np.uint64)[:, None] << np.uint64(32)
    place = np.arange(num, dtype=np.uint64)[None, :] << np.uint64(2)
    bits = (draw + place + np.uint64(stream) + np.uint64(1)) * _GOLDEN
    bits = _mixed(bits, 30, 0xBF58476D1CE4E5B9)
    bits = _mixed(bits, 27, 0x94D049BB133111EB)
    bits ^= bits >> np.uint64(31)
    return np.asarray((bits >> np.uint64(11)) * 2.0**-53)


def _mixed(bits: NDArray[np.uint64], shift: int, factor: int) -> NDArray[np.uint64]:
    return np.asarray((bits ^ (bits >> np.uint64(shift))) * np.uint64(factor))
