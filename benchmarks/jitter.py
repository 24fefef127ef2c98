"""Messages that come late, by the same draws for both sides: ours held back by the link, the peer's stamped.

A stamp is the first number of the tensor: its receiver sleeps until then. A channel stays in order.
"""

import heapq
import threading
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.utils.checkpoint import checkpoint

from varuna_runtime.spec.rng import key
from varuna_runtime.worker.link import Link

SHARE, LEAST_S, TAIL, MOST_S = 0.1, 0.06, 1.5, 1.0  # of the messages; Pareto from LEAST_S on, cut at MOST_S
_WRAP_S = 1000.0  # stamps are float32: keep them small
FORWARD, BACKWARD = "activations", "gradients"


def delay_s(round_: int, boundary: int, direction: str, index: int) -> float:
    """Return how late message `index` of a round is between stages `boundary` and `boundary` + 1."""
    drawn = key("delay", round_, boundary, direction, index)
    chance, rest = (drawn & 0xFFFFFFF) / (1 << 28), ((drawn >> 28) & 0xFFFFFFF) / (1 << 28)
    if chance >= SHARE:
        return 0.0
    return min(MOST_S, LEAST_S * (1.0 - rest) ** (-1.0 / TAIL))


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

    def __init__(self, stage: nn.Module, index: int, count: int, *, recompute: bool) -> None:
        super().__init__()
        self.stage = stage
        self._down = Channel(index, FORWARD) if index < count - 1 else None
        self._up = Channel(index - 1, BACKWARD) if index else None
        self._recompute = recompute and index < count - 1

    def begin(self, round_: int) -> None:
        """Start a round."""
        for channel in (self._down, self._up):
            if channel is not None:
                channel.begin(round_)

    def forward(self, x: Tensor) -> Tensor:
        """Return the stage's output."""
        if self._up is not None:
            x = _Arrive.apply(x, self._up)
        y: Tensor = checkpoint(self.stage, x, use_reentrant=False) if self._recompute else self.stage(x)
        if self._down is not None:
            y = _Leave.apply(y, self._down)
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
    left_s = float(tensor.view(-1)[0]) - time.monotonic() % _WRAP_S
    if left_s < -_WRAP_S / 2:
        left_s += _WRAP_S
    if left_s > 0:
        time.sleep(left_s)


class LateLink:
    """A Link that hands activations and gradients on when they are due."""

    def __init__(self, link: Link, *, stage: int) -> None:
        self._link = link
        self._channels = {FORWARD: Channel(stage, FORWARD), BACKWARD: Channel(stage - 1, BACKWARD)}
        self._held: list[tuple[float, int, int, str, tuple[Tensor, ...]]] = []
        self._num_held = 0
        self._changed = threading.Condition()
        threading.Thread(target=self._hand_on, daemon=True).start()

    def begin(self, round_: int) -> None:
        """Start a round."""
        for channel in self._channels.values():
            channel.begin(round_)

    @property
    def rank(self) -> int:
        """See Link."""
        return self._link.rank

    def send(self, to: int, tag: str, tensors: tuple[Tensor, ...]) -> None:
        """See Link."""
        if tag not in self._channels:
            self._link.send(to, tag, tensors)
            return
        with self._changed:
            self._num_held += 1
            heapq.heappush(self._held, (self._channels[tag].due_s(), self._num_held, to, tag, tensors))
            self._changed.notify()

    def poll(self, source: int, tag: str) -> tuple[Tensor, ...] | None:
        """See Link."""
        return self._link.poll(source, tag)

    def wait(self) -> None:
        """See Link."""
        self._link.wait()

    def close(self) -> None:
        """See Link."""
        self._link.close()

    def _hand_on(self) -> None:
        while True:
            with self._changed:
                while not self._held or self._held[0][0] > time.monotonic():
                    left_s = self._held[0][0] - time.monotonic() if self._held else None
                    self._changed.wait(left_s)
                _, _, to, tag, tensors = heapq.heappop(self._held)
            self._link.send(to, tag, tensors)
