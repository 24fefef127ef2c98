"""All stages [first, last) a model can be cut into, at once: their costs, and which of them fit in a slot."""

from dataclasses import replace
from functools import lru_cache

import numpy as np

from varuna_manager.planner.cuts import intervals
from varuna_manager.planner.memory import MARGIN, Residency, peak_bytes
from varuna_manager.planner.workload import Floats, Workload, at_speed

Block = tuple[slice, slice]
WHOLE = (slice(None), slice(None))
HELD_MAX = 64  # matrices that a grid keeps
MANY = 2**16
"""Micro-batches held, so many that what they take is all that counts: then each takes as much as the last."""


@lru_cache(maxsize=32)
def grid_of(work: Workload, speed: float = 1.0) -> "StageGrid":
    """Return the grid of a workload on slots of that speed; what it found out is kept for the next plan."""
    return StageGrid(at_speed(work, speed))


class StageGrid:
    """Matrices over (first, last) of one workload; entries with first >= last mean nothing."""

    def __init__(self, work: Workload) -> None:
        self.work = work
        self.first, self.last, self.is_stage = intervals(work.num_segments)
        self.forward_s = self._between(work.forward_s)
        self.compute_s = self._between(work.compute_s)
        self.recompute_s = self._between(work.recompute_s)
        self.param_bytes = self._between(work.param_bytes)
        self._most_held = lru_cache(maxsize=HELD_MAX)(self._most_held_at)

    def most_held(self, kept: Residency, memory_bytes: int, *, recompute: bool) -> Floats:
        """Return how many micro-batches stages may hold in a slot, whatever `kept` says; 0 where none.

        Where W is owed, what is held is no straight line: then infinity where as many fit as `kept` says.
        """
        asked = kept if kept.owed else replace(kept, held=1)
        return self._most_held(asked, memory_bytes / MARGIN, recompute)

    def _most_held_at(self, kept: Residency, room: float, recompute: bool) -> Floats:
        def peak(held: int) -> Floats:
            return peak_bytes(self.work, self.first, self.last, replace(kept, held=held), recompute=recompute)

        fits = self.is_stage & (peak(kept.held) <= room)
        if kept.owed:
            return np.where(fits, np.inf, 0.0)
        each = peak(MANY + 1) - peak(MANY)
        left = room - (peak(MANY) - MANY * each)
        with np.errstate(divide="ignore", invalid="ignore"):
            return np.where(fits, np.where(each > 0, left / each, np.inf), 0.0)

    def micro_s(self, kept: Residency, memory_bytes: int, *, is_last: bool, block: Block = WHOLE) -> Floats:
        """Return the work per micro-batch, recompute where needed; infinity where a stage does not fit."""
        most, compute_s = self.most_held(kept, memory_bytes, recompute=False)[block], self.compute_s[block]
        fits = most >= kept.held
        if is_last or bool((fits == self.is_stage[block]).all()):
            return np.where(fits, compute_s, np.inf)
        replayed = self.most_held(kept, memory_bytes, recompute=True)[block] >= kept.held
        return np.where(fits, compute_s, np.where(replayed, compute_s + self.recompute_s[block], np.inf))

    def _between(self, prefix: Floats) -> Floats:
        return np.asarray(prefix[self.last] - prefix[self.first])
