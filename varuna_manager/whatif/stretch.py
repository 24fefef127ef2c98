"""The steps of one generation over time, in closed form: no event per step."""

from dataclasses import dataclass

_ROUNDING = 1e-9  # of a step: times are sums of floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Steps from `step` on, each `step_s`; after every `saved_every` of them a save."""

    start_s: float
    step: int  # committed at the start, and durable
    step_s: float
    saved_every: int
    stall_s: float
    write_s: float

    @property
    def _period_s(self) -> float:
        return self.saved_every * self.step_s + self.stall_s

    def committed(self, at_s: float) -> int:
        """Return the number of committed steps of the job."""
        saves, rest_s = divmod(max(0.0, at_s - self.start_s), self._period_s)
        steps = min(self.saved_every, int(rest_s / self.step_s + _ROUNDING))
        return self.step + int(saves) * self.saved_every + steps

    def durable(self, at_s: float) -> int:
        """Return the newest step whose save has ended."""
        saves = int((at_s - self.start_s - self.write_s) / self._period_s + _ROUNDING)
        return self.step + max(0, saves) * self.saved_every

    def reaches(self, step: int) -> float:
        """Return when `step`, at least the first one, is committed."""
        steps = step - self.step
        saves = max(0, steps - 1) // self.saved_every
        return self.start_s + steps * self.step_s + saves * self.stall_s

    def boundary(self, at_s: float) -> float:
        """Return when the step that runs at that time ends; at once between two steps."""
        done = self.committed(at_s)
        began_s = self.reaches(done)
        if (done - self.step) % self.saved_every == 0 and done > self.step:
            began_s += self.stall_s
        if at_s <= began_s + _ROUNDING * self.step_s:
            return at_s
        return began_s + self.step_s

    def begun_s(self, at_s: float) -> float:
        """Return for how long the step that runs at that time has run."""
        left_s = self.boundary(at_s) - at_s
        return self.step_s - left_s if left_s > 0 else 0.0
