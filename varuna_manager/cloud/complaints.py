"""Which complaints of a provider may explain why its target is not met; pure."""

_OLD_S = 3600.0  # what failed before that explains nothing
_SKEW_S = 5.0  # between the provider's clock and ours


class Complaints:
    """Knows when the target was last raised: what failed earlier would make a new request look hopeless."""

    def __init__(self) -> None:
        self._desired: int | None = None
        self._read_at_s = 0.0
        self._raised_at_s: float | None = None  # the last reading before the target rose

    def note(self, desired: int, now_s: float) -> None:
        """Take in the target of a reading."""
        if self._desired is not None and desired > self._desired:
            self._raised_at_s = self._read_at_s
        self._desired, self._read_at_s = desired, now_s

    def after_s(self, now_s: float) -> float:
        """Return the Unix time after which a complaint counts."""
        if self._raised_at_s is None:
            return now_s - _OLD_S
        return max(now_s - _OLD_S, self._raised_at_s - _SKEW_S)
