"""How long the ops of a step took: by the clock on a CPU, on a GPU by events in its own stream."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import torch

from varuna_runtime.worker import clock


@dataclass(frozen=True, slots=True, kw_only=True)
class Busy:
    """What one rank worked in a step, beside its sums."""

    seconds: float  # in ops
    num_samples: int  # they were of


class Stopwatch:
    """A context around each op; waiting, data and messages are outside of it."""

    def __init__(self, device: torch.device, *, now_s: Callable[[], float] = clock.now_s) -> None:
        self._device, self._now_s = device, now_s
        self._is_cuda = device.type == "cuda"
        self._started_s = self._taken_s = 0.0
        self._events: list[torch.cuda.Event] = []  # a start and an end of each op
        self._num_used = 0

    def reset(self) -> None:
        """Begin a step."""
        self._taken_s, self._num_used = 0.0, 0

    def __enter__(self) -> Self:
        if self._is_cuda:
            self._mark()
        else:
            self._started_s = self._now_s()
        return self

    def __exit__(self, *_: object) -> None:
        if self._is_cuda:
            self._mark()
        else:
            self._taken_s += self._now_s() - self._started_s

    def taken_s(self) -> float:
        """Return the seconds in ops since the step began; waits for a GPU to end the last of them."""
        if not self._num_used:
            return self._taken_s
        used = self._events[: self._num_used]
        used[-1].synchronize()
        pairs = zip(used[::2], used[1::2], strict=True)
        return sum(float(start.elapsed_time(end)) for start, end in pairs) / 1e3

    def _mark(self) -> None:
        if self._num_used == len(self._events):
            self._events.append(torch.cuda.Event(enable_timing=True))  # type: ignore[no-untyped-call]
        self._events[self._num_used].record(torch.cuda.current_stream(self._device))
        self._num_used += 1
