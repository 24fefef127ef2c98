"""How a source of notices is, and how soon to ask it again. Pure."""

_FAILURES_TOLERATED = 2  # one lost answer is no news


class Health:
    """Counts answers and failures; says when the state that the manager knows is no longer true."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._num_failures = 0
        self.state = "starting"

    @property
    def num_failures(self) -> int:
        """Failures since the last answer."""
        return self._num_failures

    def answered(self) -> bool:
        """Return whether that is news."""
        self._num_failures = 0
        return self._become(self._name)

    def failed(self, reason: str) -> bool:
        """Return whether that is news; only the first reason of an outage is."""
        self._num_failures += 1
        if self.state == self._name and self._num_failures <= _FAILURES_TOLERATED:
            return False
        if self.state.startswith("unavailable"):
            return False
        return self._become(f"unavailable, because {reason}")

    def _become(self, state: str) -> bool:
        is_news, self.state = state != self.state, state
        return is_news


def pause_s(num_failures: int, every_s: float, cap_s: float) -> float:
    """Return the seconds before the next question: `every_s`, doubled with each failure up to `cap_s`."""
    return min(cap_s, every_s * 2.0 ** min(num_failures, 16)) if num_failures else every_s
