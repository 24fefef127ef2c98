"""All stages [first, last) a model can be cut into, at once: their costs, and which of them fit in a slot."""

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from varuna_manager.planner.cuts import intervals
from varuna_manager.planner.memory import MARGIN, Residency, peak_bytes
from varuna_manager.planner.workload import Floats, Workload, at_speed

Block = tuple[slice, slice]
WHOLE = (slice(None), slice(None))
FITS_MAX = 512  # matrices of booleans that a grid keeps


@lru_cache(maxsize=32)
def grid_of(work: Workload, speed: float = 1.0) -> "StageGrid":
    """Return the grid of a workload on slots of that speed; what it found out is kept for the next plan."""
    return StageGrid(work if speed == 1.0 else at_speed(work, speed))


class StageGrid:
    """Matrices over (first, last) of one workload; entries with first >= last mean nothing."""

    def __init__(self, work: Workload) -> None:
        self.work = work
        self.first, self.last, self.is_stage = intervals(work.num_segments)
        self.forward_s = self._between(work.forward_s)
        self.compute_s = self._between(work.compute_s)
        self.recompute_s = self._between(work.recompute_s)
        self.param_bytes = self._between(work.param_bytes)
        self._kept_fits = lru_cache(maxsize=FITS_MAX)(self._fits)

    def fits(self, kept: Residency, memory_bytes: int, *, recompute: bool) -> NDArray[np.bool_]:
        """Return which stages fit in a slot."""
        return self._kept_fits(kept, memory_bytes, recompute)

    def _fits(self, kept: Residency, memory_bytes: int, recompute: bool) -> NDArray[np.bool_]:
        peaks = peak_bytes(self.work, self.first, self.last, kept, recompute=recompute)
        return self.is_stage & (peaks <= memory_bytes / MARGIN)

    def micro_s(self, kept: Residency, memory_bytes: int, *, is_last: bool, block: Block = WHOLE) -> Floats:
        """Return the work per micro-batch, recompute where needed; infinity where a stage does not fit."""
        fits, compute_s = self.fits(kept, memory_bytes, recompute=False)[block], self.compute_s[block]
        if is_last or bool((fits == self.is_stage[block]).all()):
            return np.where(fits, compute_s, np.inf)
        replayed = self.fits(kept, memory_bytes, recompute=True)[block]
        return np.where(fits, compute_s, np.where(replayed, compute_s + self.recompute_s[block], np.inf))

    def _between(self, prefix: Floats) -> Floats:
        return np.asarray(prefix[self.last] - prefix[self.first])
