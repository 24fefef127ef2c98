"""All stages [first, last) a model can be cut into, at once: their costs, and which of them fit in a slot."""

import numpy as np
from numpy.typing import NDArray

from varuna_manager.planner.cuts import intervals
from varuna_manager.planner.memory import MARGIN, Residency, peak_bytes
from varuna_manager.planner.workload import Floats, Workload


class StageGrid:
    """Matrices over (first, last) of one workload; entries with first >= last mean nothing."""

    def __init__(self, work: Workload) -> None:
        self.work = work
        self.first, self.last, self.is_stage = intervals(work.num_segments)
        self.forward_s = self._between(work.forward_s)
        self.compute_s = self._between(work.compute_s)
        self.recompute_s = self._between(work.recompute_s)
        self.param_bytes = self._between(work.param_bytes)
        self._fits: dict[tuple[Residency, int, bool], NDArray[np.bool_]] = {}

    def fits(self, kept: Residency, memory_bytes: int, *, recompute: bool) -> NDArray[np.bool_]:
        """Return which stages fit in a slot."""
        key = kept, memory_bytes, recompute
        if key not in self._fits:
            peaks = peak_bytes(self.work, self.first, self.last, kept, recompute=recompute)
            self._fits[key] = self.is_stage & (peaks <= memory_bytes / MARGIN)
        return self._fits[key]

    def micro_s(self, kept: Residency, memory_bytes: int, *, is_last: bool) -> Floats:
        """Return the work per micro-batch, recompute where needed; infinity where a stage does not fit."""
        fits = self.fits(kept, memory_bytes, recompute=False)
        if is_last or bool(fits.sum() == self.is_stage.sum()):
            return np.where(fits, self.compute_s, np.inf)
        replayed = self.fits(kept, memory_bytes, recompute=True)
        return np.where(fits, self.compute_s, np.where(replayed, self.compute_s + self.recompute_s, np.inf))

    def _between(self, prefix: Floats) -> Floats:
        return np.asarray(prefix[self.last] - prefix[self.first])
