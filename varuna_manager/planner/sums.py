"""What it takes to sum a stage's gradients over its replicas: as it was measured, else by the link alone."""

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from varuna_runtime.spec.profile import LinkCost, ReduceCost

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SumCost:
    """Sums over one kind of link: latencies, and a time that grows with the bytes each rank sends."""

    link: LinkCost
    sent_bytes: tuple[float, ...] = ()  # ascending; none: not measured
    beyond_s: tuple[float, ...] = ()  # what these took beyond the latencies; never falls

    @classmethod
    def of(cls, link: LinkCost, measured: Iterable[ReduceCost]) -> "SumCost":
        """Return the cost of sums that were measured over this link.

        Each replica handed over one sum, so a rank sent 2 (D - 1) / D times the bytes in 2 (D - 1) messages.
        """
        latency_s = link.latency_s
        points = sorted(
            (
                2 * (one.replicas - 1) / one.replicas * one.num_bytes,
                max(one.seconds - 2 * (one.replicas - 1) * latency_s, 0.0),
            )
            for one in measured
        )
        longest_s = np.maximum.accumulate([seconds for _, seconds in points]) if points else ()
        return cls(
            link=link, sent_bytes=tuple(sent for sent, _ in points), beyond_s=tuple(map(float, longest_s))
        )

    def seconds(self, replicas: int, sent_bytes: Floats | float) -> Floats:
        """Return the time of a sum over `replicas` in which each rank sends `sent_bytes`.

        Between two measured sizes it is in between, above the largest in proportion.
        """
        latencies_s = 2 * (replicas - 1) * self.link.latency_s
        if not self.sent_bytes:
            return np.asarray(latencies_s + sent_bytes * 8 / self.link.bandwidth_bps)
        most = self.sent_bytes[-1]
        inside_s = np.interp(sent_bytes, (0.0, *self.sent_bytes), (0.0, *self.beyond_s))
        return np.asarray(latencies_s + inside_s * np.maximum(np.divide(sent_bytes, most), 1.0))

    @property
    def least_s_per_byte(self) -> float:
        """What each byte takes at least, whatever the size."""
        if not self.sent_bytes:
            return 8 / self.link.bandwidth_bps
        return min(seconds / sent for sent, seconds in zip(self.sent_bytes, self.beyond_s, strict=True))
