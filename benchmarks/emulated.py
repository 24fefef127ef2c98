"""Compute that sleeps: a forward, and a backward in two parts that autograd can run apart.

The gradient of the input and the gradient of the weight sleep in nodes of their own, joined by an addition:
so any runtime may run the second part later, and none of them pays for a part twice.
"""

import time
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable


class Pace:
    """Tells all work made with it how fast to be; copies of a module share it."""

    def __init__(self) -> None:
        self.factor = 1.0

    def __deepcopy__(self, memo: object) -> "Pace":
        """Return itself."""
        return self

    def sleep(self, seconds: float) -> None:
        """Wait, without a system call for nothing."""
        if seconds * self.factor > 0:
            time.sleep(seconds * self.factor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Seconds of one micro-batch in one stage."""

    forward_s: float
    input_s: float  # gradient of the input
    weight_s: float  # gradient of the weight

    @property
    def backward_s(self) -> float:
        """Both halves."""
        return self.input_s + self.weight_s

    @property
    def micro_s(self) -> float:
        """A forward and a backward."""
        return self.forward_s + self.backward_s

    def split(self, parts: int) -> "Times":
        """Return the times of one of `parts` equal pieces of the stage."""
        return Times(
            forward_s=self.forward_s / parts, input_s=self.input_s / parts, weight_s=self.weight_s / parts
        )


class _SleepBackward(torch.autograd.Function):
    """Identity whose backward takes time, and needs what its forward kept, as real ones do."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, seconds: float, pace: Pace) -> Tensor:
        ctx.seconds, ctx.pace = seconds, pace
        ctx.save_for_backward(x)
        return x.view_as(x)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        (_,) = ctx.saved_tensors
        ctx.pace.sleep(ctx.seconds)
        return gradient, None, None


def _slept(x: Tensor, seconds: float, pace: Pace) -> Tensor:
    out: Tensor = _SleepBackward.apply(x, seconds, pace)  # type: ignore[no-untyped-call]
    return out


class Work(nn.Module):
    """`(m, width)` -> the same, as if it took `times`; with `rows`, for so many of them."""

    def __init__(self, times: Times, pace: Pace, *, rows: int | None = None, num_weights: int = 1) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(num_weights))
        self.times, self.pace, self.rows = times, pace, rows

    def forward(self, x: Tensor) -> Tensor:
        """Return about x."""
        share = len(x) / self.rows if self.rows else 1.0
        self.pace.sleep(self.times.forward_s * share)
        x = _slept(x, self.times.input_s * share, self.pace)
        return x + _slept(self.weight, self.times.weight_s * share, self.pace).mean()


class First(Work):
    """`(m, 1)` -> `(m, width)`: the first stage, where both halves of the backward still take time."""

    def __init__(
        self, times: Times, pace: Pace, width: int, *, rows: int | None = None, num_weights: int = 1
    ) -> None:
        super().__init__(times, pace, rows=rows, num_weights=num_weights)
        self.table = nn.Parameter(torch.zeros(1, 1))
        self.width = width

    def forward(self, x: Tensor) -> Tensor:
        """Return the input, made as wide as an activation."""
        return super().forward((x + self.table).expand(-1, self.width))


def stage_modules(times: Times, pace: Pace, *, count: int, width: int) -> list[nn.Module]:
    """Return the pieces of a model of `count` equal stages that each take `times`."""
    return [First(times, pace, width), *(Work(times, pace) for _ in range(count - 1))]


def mean_of_few(output: Tensor, target: Tensor) -> Tensor:
    """A loss that costs nothing, with a dense gradient."""
    return output.mean() + target.sum() * 0
