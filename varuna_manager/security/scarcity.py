"""How often refusals of one peer are told, so that a scanner cannot fill the journal; pure."""

from collections import OrderedDict
from dataclasses import dataclass

_KIND_WORDS = 3  # what follows in a reason are ids, which a peer may vary at will


@dataclass(slots=True)
class _Window:
    since_s: float
    told: int = 0
    untold: int = 0


class Scarcity:
    """A few lines a minute for each peer and kind of reason, and a bounded number for all together."""

    def __init__(
        self, *, window_s: float = 60.0, per_reason: int = 3, in_all: int = 60, max_reasons: int = 4096
    ) -> None:
        self._window_s = window_s
        self._per_reason = per_reason
        self._in_all = in_all
        self._max_reasons = max_reasons
        self._reasons: OrderedDict[tuple[str, ...], _Window] = OrderedDict()
        self._all: _Window = _Window(since_s=float("-inf"))

    def line(self, peer: str, why: str, now_s: float) -> str | None:
        """Return what to tell about this refusal, with how many were left out before it; None: nothing."""
        self._all = self._current(self._all, now_s)
        key = (peer, *why.split()[:_KIND_WORDS])
        window = self._current(self._reasons.get(key, _Window(since_s=now_s)), now_s)
        self._reasons[key] = window
        self._reasons.move_to_end(key)
        while len(self._reasons) > self._max_reasons:
            self._reasons.popitem(last=False)
        if window.told >= self._per_reason or self._all.told >= self._in_all:
            window.untold += 1
            return None
        window.told += 1
        self._all.told += 1
        untold, window.untold = window.untold, 0
        return f"{why} (and {untold} more times before)" if untold else why

    def _current(self, window: _Window, now_s: float) -> _Window:
        if now_s - window.since_s < self._window_s:
            return window
        return _Window(since_s=now_s, untold=window.untold)
