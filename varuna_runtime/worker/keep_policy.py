"""When one rank wants another copy of its state; pure."""

from dataclasses import dataclass

STALL_SHARE = 0.03  # of the time may be spent waiting for copies
_SMOOTHING = 0.25
_FIRST_USES = 2  # of each buffer: new memory is slow once


@dataclass(slots=True, kw_only=True)
class KeepPolicy:
    """When this rank wants another copy: at every step while they cost little."""

    last_s: float
    wait_s: float = 0.0
    stall_s: float = 0.0  # of a copy, smoothed
    num_learnt: int = 0

    def is_due(self, now_s: float) -> bool:
        """Return whether waiting for one more copy stays within its share of the time."""
        return now_s - self.last_s >= self.wait_s

    def begun(self, now_s: float) -> None:
        """A copy began."""
        self.last_s = now_s

    def learnt(self, stall_s: float) -> None:
        """Training stood still for so long because of a copy."""
        self.num_learnt += 1
        if self.num_learnt <= _FIRST_USES:
            return
        is_first = self.num_learnt == _FIRST_USES + 1
        self.stall_s = stall_s if is_first else self.stall_s + _SMOOTHING * (stall_s - self.stall_s)
        self.wait_s = self.stall_s / STALL_SHARE
