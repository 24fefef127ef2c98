"""What repeated timings say: their middle, their spread, and whether more of them are needed. Pure."""

from collections.abc import Sequence
from statistics import median, median_low

FEWEST, ENOUGH, MOST = 2, 5, 31
SETTLED_SPREAD = 0.05
NUM_QUANTILES = 21
_TRIMMED = 0.01  # at either end: what one sample in a hundred took says more of the machine's other work


def typical(times: Sequence[float]) -> float:
    """Return the median, the lower one of two: where there is time for two timings, one may be an outlier."""
    return median_low(times)


def spread(times: Sequence[float]) -> float:
    """Return the distance between the quartiles over the median: outliers do not count."""
    middle = median(times)
    return (quantile(times, 0.75) - quantile(times, 0.25)) / middle if middle > 0 else 0.0


def is_settled(kinds: Sequence[Sequence[float]], *, is_late: bool) -> bool:
    """Return whether each kind of op was timed often enough, or as often as there is time for."""
    fewest = min(map(len, kinds))
    if fewest < FEWEST:
        return False
    is_steady = fewest >= ENOUGH and all(spread(times) <= SETTLED_SPREAD for times in kinds)
    return is_late or is_steady or fewest >= MOST


def quantile(values: Sequence[float], share: float) -> float:
    """Return a quantile, interpolated between neighbours."""
    ordered = sorted(values)
    at = share * (len(ordered) - 1)
    below = int(at)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (at - below) * (ordered[above] - ordered[below])


def quantiles(values: Sequence[float]) -> tuple[float, ...]:
    """Return evenly spaced quantiles from 0 to 1, outermost samples trimmed; none of too few values."""
    if len(values) < NUM_QUANTILES:
        return ()
    shares = (at / (NUM_QUANTILES - 1) for at in range(NUM_QUANTILES))
    return tuple(quantile(values, min(max(share, _TRIMMED), 1 - _TRIMMED)) for share in shares)
