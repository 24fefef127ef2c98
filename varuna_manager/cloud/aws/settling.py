"""Whether what we wrote last shows already in what we read; pure."""

_SHOWS_WITHIN_S = 60.0
_UNANSWERED_S = 15.0


class Settling:
    """The one write whose effect may still be on its way: reads of a cloud may lag behind its writes."""

    def __init__(self) -> None:
        self._desired: int | None = None
        self._until_s = 0.0

    def wrote(self, desired: int, now_s: float) -> None:
        """Expect to read `desired`; after a minute somebody else must have changed it."""
        self._desired, self._until_s = desired, now_s + _SHOWS_WITHIN_S

    def unanswered(self, now_s: float) -> None:
        """Expect anything for a while: a write without an answer may have happened, or may yet."""
        self._desired, self._until_s = None, now_s + _UNANSWERED_S

    def is_over(self, desired: int, now_s: float) -> bool:
        """Return whether a reading of `desired` can be trusted to be the newest."""
        if now_s >= self._until_s or desired == self._desired:
            self._until_s = 0.0
            return True
        return False
