"""The cost of a link from timed messages. Pure."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from varuna_runtime.spec.profile import LinkCost
from varuna_runtime.worker.samples import quantiles, typical

_LEAST_S_PER_BYTE = 1e-15


def link_cost(small: Sequence[float], bulk: Sequence[Mapping[int, Sequence[float]]]) -> LinkCost:
    """Return latency, bandwidth and lateness from one-way times in seconds.

    `small` are those of messages of next to no bytes; `bulk[i]` those of one direction, by bytes. The slower
    direction counts. Bandwidth is the slope over the bulk alone: a shaped line lets the first bytes of a
    burst pass at once, so that a line through all sizes would start below zero.
    """
    latency_s = max(typical(small), 0.0)
    s_per_byte = max(_slope(times, latency_s) for times in bulk)
    late = [
        max(time_s - latency_s - num_bytes * s_per_byte, 0.0)
        for times in bulk
        for num_bytes, each in times.items()
        for time_s in each
    ]
    return LinkCost(latency_s=latency_s, bandwidth_bps=8 / s_per_byte, late_s=quantiles(late))


def _slope(times: Mapping[int, Sequence[float]], latency_s: float) -> float:
    """Return seconds per byte by least squares; of the largest message where that gives none."""
    sizes = sorted(times)
    middle = [typical(times[size]) for size in sizes]
    size, time_s = fmean(sizes), fmean(middle)
    across = sum((n - size) ** 2 for n in sizes)
    along = sum((n - size) * (t - time_s) for n, t in zip(sizes, middle, strict=True))
    found = along / across if across else 0.0
    if found <= 0:
        found = (middle[-1] - latency_s) / sizes[-1]
    return max(found, _LEAST_S_PER_BYTE)
