"""Messages that come late, by the same draws for both sides: ours held back by the link, the peer's stamped.

A stamp is the first number of the tensor: its receiver sleeps until then. A channel stays in order.
"""

import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from varuna_runtime.spec.rng import key
from varuna_runtime.worker.link import Link

SHARE, SCALE_S, TAIL, MOST_S = (
    0.1,
    0.06,
    1.5,
    1.0,
)  # a Lomax draw, as numpy.random.pareto gives, cut at MOST_S
MICRO_BATCHES = 16
_LOOK_S = 0.001
_WRAP_S = 1000.0  # stamps are float32: keep them small
FORWARD, BACKWARD = "activations", "gradients"


def delay_s(round_: int, boundary: int, direction: str, index: int) -> float:
    """Return how late message `index` of a round is between stages `boundary` and `boundary` + 1."""
    drawn = key("delay", round_, boundary, direction, index)
    chance, rest = (drawn & 0xFFFFFFF) / (1 << 28), ((drawn >> 28) & 0xFFFFFFF) / (1 << 28)
    if chance >= SHARE:
        return 0.0
    return min(MOST_S, SCALE_S * (math.pow(1.0 - rest, -1.0 / TAIL) - 1.0))


class Channel:
    """Draws the delays of one direction of one boundary, in order."""

    def __init__(self, boundary: int, direction: str) -> None:
        self._boundary, self._direction = boundary, direction
        self.begin(0)

    def begin(self, round_: int) -> None:
        """Start a round."""
        self._round, self._index, self._due_s = round_, 0, 0.0

    def due_s(self) -> float:
        """Return when the message that is sent now may be used."""
        late_s = delay_s(self._round, self._boundary, self._direction, self._index)
        self._index += 1
        self._due_s = max(self._due_s, time.monotonic() + late_s)
        return self._due_s

    def __deepcopy__(self, memo: object) -> "Channel":
        """Return itself: copies of a module send on the same channel."""
        return self


class Stamped(nn.Module):
    """A stage of the peer whose messages are late; `recompute` replays its forward before its backward."""

    def __init__(self, stage: nn.Module, index: int, count: int, *, ranks: int, recompute: bool) -> None:
        super().__init__()
        self.stage = stage
        turn = ranks - 1 if count > ranks else count  # two stages of a V on the same rank
        self._down = Channel(index, FORWARD) if index not in (count - 1, turn) else None
        self._up = Channel(index - 1, BACKWARD) if index - 1 not in (-1, turn) else None
        self._recompute = recompute and index < count - 1

    def begin(self, round_: int) -> None:
        """Start a round."""
        for channel in (self._down, self._up):
            if channel is not None:
                channel.begin(round_)

    def forward(self, x: Tensor) -> Tensor:
        """Return the stage's output."""
        if self._up is not None:
            x = _Arrive.apply(x, self._up)  # type: ignore[no-untyped-call]
        y: Tensor = checkpoint(self.stage, x, use_reentrant=False) if self._recompute else self.stage(x)
        if self._down is not None:
            y = _Leave.apply(y, self._down)  # type: ignore[no-untyped-call]
        return y


class _Arrive(torch.autograd.Function):
    """Waits for the activation; backward stamps the gradient that leaves."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, channel: Channel) -> Tensor:
        ctx.channel = channel
        _wait_for(x)
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        return _stamped(gradient, ctx.channel), None


class _Leave(torch.autograd.Function):
    """Stamps the activation; backward waits for its gradient."""

    @staticmethod
    def forward(ctx: Any, y: Tensor, channel: Channel) -> Tensor:
        return _stamped(y, channel)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        _wait_for(gradient)
        return gradient, None


def _stamped(tensor: Tensor, channel: Channel) -> Tensor:
    stamped = tensor.clone()
    stamped.view(-1)[0] = channel.due_s() % _WRAP_S
    return stamped


def _wait_for(tensor: Tensor) -> None:
    left_s = (float(tensor.view(-1)[0]) - time.monotonic()) % _WRAP_S
    if (
        left_s < MICRO_BATCHES * MOST_S
    ):  # else it is past, or no stamp: torch looks at shapes with empty tensors
        time.sleep(left_s)


class LateLink:
    """A Link whose activations and gradients carry a stamp and are kept from the engine until then."""

    def __init__(self, link: Link, *, stage: int) -> None:
        self._link = link
        self._channels = {FORWARD: Channel(stage, FORWARD), BACKWARD: Channel(stage - 1, BACKWARD)}
        self._early: dict[tuple[int, str], deque[tuple[Tensor, ...]]] = {}
        self._wanted: set[tuple[int, str]] = set()  # polled in vain since the last wait

    def begin(self, round_: int) -> None:
        """Start a round."""
        for channel in self._channels.values():
            channel.begin(round_)

    @property
    def rank(self) -> int:
        """See Link."""
        return self._link.rank

    def send(self, to: int, tag: str, tensors: tuple[Tensor, ...], *, can_wait: bool = False) -> None:
        """See Link."""
        channel = self._channels.get(tag)
        if channel is not None:
            tensors = (*tensors, torch.tensor(channel.due_s(), dtype=torch.float64))
        self._link.send(to, tag, tensors, can_wait=can_wait)

    def poll(self, source: int, tag: str) -> tuple[Tensor, ...] | None:
        """See Link."""
        if tag not in self._channels:
            return self._link.poll(source, tag)
        early = self._early.setdefault((source, tag), deque())
        while (message := self._link.poll(source, tag)) is not None:
            early.append(message)
        if early and float(early[0][-1]) <= time.monotonic():
            return early.popleft()[:-1]
        self._wanted.add((source, tag))
        return None

    def wait(self) -> None:
        """See Link."""
        wanted, self._wanted = self._wanted, set()
        due_s = min((float(early[0][-1]) for early in self._early.values() if early), default=None)
        if due_s is None:
            self._link.wait()
            return
        num_early = sum(map(len, self._early.values()))
        while (left_s := due_s - time.monotonic()) > 0:
            time.sleep(min(_LOOK_S, left_s))
            for source, tag in wanted:
                if (message := self._link.poll(source, tag)) is not None:
                    self._early[source, tag].append(message)
            if sum(map(len, self._early.values())) > num_early:
                return

    def wake(self) -> None:
        """See Link."""
        self._link.wake()

    def meanwhile(self, work: Callable[[], None]) -> None:
        """See Link; what is late would not be known there."""

    def abort(self, fault: Any) -> None:
        """See Link."""
        self._link.abort(fault)

    def close(self) -> None:
        """See Link."""
        self._link.close()
