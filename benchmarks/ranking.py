"""How good predictions are: errors, whether they rank layouts rightly, and what trusting them costs."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from statistics import fmean, median

from varuna_runtime.spec.layout import Layout


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """One layout, predicted and measured."""

    layout: Layout
    predicted_s: float
    measured_s: float

    @property
    def error(self) -> float:
        """Predicted over measured, less one."""
        return self.predicted_s / self.measured_s - 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Regret:
    """What the layout predicted fastest took beyond the fastest one measured, as a share of that."""

    num_nodes: int
    chosen: Layout
    best: Layout
    share: float


def mean_error(rows: Sequence[Predicted]) -> float:
    """Return the mean absolute error."""
    return fmean(abs(row.error) for row in rows)


def median_error(rows: Sequence[Predicted]) -> float:
    """Return the median absolute error."""
    return median(abs(row.error) for row in rows)


def max_error(rows: Sequence[Predicted]) -> float:
    """Return the largest absolute error."""
    return max(abs(row.error) for row in rows)


def kendall_tau(rows: Sequence[Predicted], *, same: float = 0.0) -> float:
    """Return (pairs ranked rightly - pairs ranked wrongly) / pairs; 1.0 where there are none.

    A tie of predictions counts as neither. Pairs whose measured times differ by no more than the share
    `same` are no pairs.
    """
    pairs = ranked_pairs(rows, same=same)
    if not pairs:
        return 1.0
    return sum(_agreement(a, b) for a, b in pairs) / len(pairs)


def ranked_pairs(rows: Sequence[Predicted], *, same: float) -> list[tuple[Predicted, Predicted]]:
    """Return the pairs whose order the measured times tell."""
    return [
        (a, b)
        for a, b in combinations(rows, 2)
        if max(a.measured_s, b.measured_s) > min(a.measured_s, b.measured_s) * (1 + same)
    ]


def regret(rows: Sequence[Predicted], num_nodes: int) -> Regret | None:
    """Return what our choice among the layouts of at most `num_nodes` costs; None where there is none."""
    small = [row for row in rows if row.layout.world_size <= num_nodes]
    if not small:
        return None
    chosen = min(small, key=lambda row: (row.predicted_s, row.layout.world_size, row.layout.stages))
    best = min(small, key=lambda row: row.measured_s)
    return Regret(
        num_nodes=num_nodes,
        chosen=chosen.layout,
        best=best.layout,
        share=chosen.measured_s / best.measured_s - 1.0,
    )


def regrets(rows: Sequence[Predicted]) -> list[Regret]:
    """Return the regret at every number of nodes, from the first that can train to the most measured."""
    most = max((row.layout.world_size for row in rows), default=0)
    return [one for n in range(1, most + 1) if (one := regret(rows, n)) is not None]


def _agreement(a: Predicted, b: Predicted) -> int:
    product = (a.predicted_s - b.predicted_s) * (a.measured_s - b.measured_s)
    return (product > 0) - (product < 0)
