"""A backward in two passes gives the bits of a whole one, and frees its graph."""

import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from varuna_runtime.spec.job import Precision
from varuna_runtime.worker.segment import Frame, SegmentRunner
from varuna_runtime.worker.split import Owed, backward_input, backward_weight

WIDTH = 16


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.TransformerEncoderLayer(WIDTH, 4, 32, dropout=0.0, batch_first=True)

    def forward(self, values: Tensor) -> Tensor:
        return self.inner(values)


class UsedTwice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(WIDTH, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        return self.inner(torch.tanh(self.inner(values)))


class WithConstants(nn.Module):
    """Has an output that no input leads to."""

    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(WIDTH)), nn.Parameter(torch.ones(WIDTH))

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        return values * self.scale, self.shift.tanh()


class Multiply(torch.autograd.Function):
    """Does all of its backward at once, as fused kernels do."""

    @staticmethod
    def forward(ctx: torch.autograd.function.FunctionCtx, values: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(values, scale)
        return values * scale

    @staticmethod
    def backward(ctx: torch.autograd.function.FunctionCtx, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        values, scale = ctx.saved_tensors  # type: ignore[attr-defined]
        return gradient * scale, (gradient * values).sum((0, 1))


class Fused(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.randn(WIDTH))

    def forward(self, values: Tensor) -> Tensor:
        return Multiply.apply(values, self.scale).exp()


class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Sequential(nn.Conv2d(2, 32, 3), nn.GroupNorm(4, 32), nn.ReLU(), nn.Conv2d(32, 3, 1))
        self.inner.to(memory_format=torch.channels_last)

    def forward(self, values: Tensor) -> Tensor:
        found: Tensor = self.inner(values)
        return found


def images() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 3, 3, bias=False), nn.GroupNorm(3, 3)
    )


VALUES, TOKENS, IMAGE = torch.randn(2, 5, WIDTH), torch.randint(9, (2, 5)), torch.randn(2, 2, 8, 8)
# maker, input, number of parameters that are left to W
SEGMENTS: dict[str, tuple[Callable[[], nn.Module], Tensor, int]] = {
    "linear": (lambda: nn.Linear(WIDTH, 7), VALUES, 2),
    "norm": (lambda: nn.LayerNorm(WIDTH), VALUES, 2),
    "embedding": (lambda: nn.Embedding(9, WIDTH), TOKENS, 1),
    "convolutions": (images, IMAGE, 5),
    "channels last": (ChannelsLast, IMAGE, 4),
    "attention": (Attention, VALUES, 12),
    "weight norm": (lambda: nn.utils.parametrizations.weight_norm(nn.Linear(WIDTH, 3)), VALUES, 3),
    "recurrent": (lambda: nn.GRU(WIDTH, 4, batch_first=True), VALUES, 2),
    "used twice": (UsedTwice, VALUES, 0),
    "a constant output": (WithConstants, VALUES, 1),
    "one piece": (Fused, VALUES, 0),
}


def runner(module: nn.Module, precision: Precision = Precision.FP32) -> SegmentRunner:
    names = {name: name for name, _ in (*module.named_parameters(), *module.named_buffers())}
    return SegmentRunner(
        0, module, names, device=torch.device("cpu"), precision=precision, forbid_mutation=False
    )


def forward(segment: SegmentRunner, values: Tensor) -> tuple[Frame, list[Tensor]]:
    frame = segment.forward((values.clone().requires_grad_(values.is_floating_point()),), key=1)
    return frame, [torch.linspace(-1, 1, t.numel()).view_as(t).to(t.dtype) for t in frame.outputs]


def assert_same(one: tuple[Tensor | None, ...], other: tuple[Tensor | None, ...]) -> None:
    for a, b in zip(one, other, strict=True):
        assert (a is None and b is None) or (a is not None and b is not None and a.equal(b))


@pytest.mark.parametrize("kind", SEGMENTS)
@pytest.mark.parametrize("precision", [Precision.FP32, Precision.BF16])
def test_two_passes_give_the_bits_of_one(kind: str, precision: Precision) -> None:
    make, values, num_late = SEGMENTS[kind]
    torch.manual_seed(0)
    segment = runner(make(), precision)
    whole = segment.backward(*forward(segment, values))
    for micro in range(3):
        inputs, owed = segment.backward_input(*forward(segment, values))
        late = sum(len(start.positions) for start in owed.starts)
        assert late == (num_late if micro else 0)  # the first is whole, to compare
        assert_same(inputs, whole.inputs)
        assert_same(segment.backward_weight(owed), whole.parameters)


class Hooked(nn.Module):
    """Scales a gradient, `later` times as much when it comes again."""

    def __init__(self, later: float) -> None:
        super().__init__()
        self.later = later
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        middle = self.first(values)
        factors = iter([2.0, *[2.0 * self.later] * 9])
        if middle.requires_grad:
            middle.register_hook(lambda gradient: gradient * next(factors))
        return self.last(middle)


@pytest.mark.parametrize(("later", "num_starts"), [(1.0, 2), (0.5, 0)])
def test_a_segment_whose_second_pass_would_differ_is_kept_whole(later: float, num_starts: int) -> None:
    segment = runner(Hooked(later))
    whole = segment.backward(*forward(segment, VALUES[0]))
    for micro in range(3):
        inputs, owed = segment.backward_input(*forward(segment, VALUES[0]))
        assert len(owed.starts) == (num_starts if micro else 0)
        assert_same(inputs, whole.inputs)
        assert_same(segment.backward_weight(owed), whole.parameters)


class Borrowed(torch.autograd.Function):
    """Returns gradients in memory that it writes into again with every call, as fused kernels do."""

    values, scale = torch.zeros(2, 5, WIDTH), torch.zeros(WIDTH)

    @staticmethod
    def forward(ctx: Any, values: Tensor, scale: Tensor) -> Tensor:
        ctx.save_for_backward(values, scale)
        return values * scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        values, scale = ctx.saved_tensors
        torch.mul(gradient, scale, out=Borrowed.values)
        torch.sum(gradient * values, (0, 1), out=Borrowed.scale)
        return Borrowed.values, Borrowed.scale


class Borrowing(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.randn(WIDTH)), nn.Parameter(torch.randn(2, 5, WIDTH))

    def forward(self, values: Tensor) -> Tensor:
        found: Tensor = Borrowed.apply(values + self.shift.exp(), self.scale)
        return found


def test_gradients_outlast_the_next_call_of_the_function_that_made_them() -> None:
    torch.manual_seed(0)
    segment, wanted, whole, split = runner(Borrowing()), [], [], []
    for factor in (1.0, 2.0, 3.0):
        frame, seeds = forward(segment, VALUES * factor)
        again, _ = forward(segment, VALUES * factor)
        found = torch.autograd.grad(frame.outputs, [*frame.inputs, *segment._trained], seeds)
        wanted.append([g.clone() for g in found])
        whole.append(segment.backward(again, seeds))
    for factor in (1.0, 2.0, 3.0):
        split.append(segment.backward_input(*forward(segment, VALUES * factor)))
    for want, one, (inputs, owed) in zip(wanted, whole, split, strict=True):
        assert_same((*one.inputs, *one.parameters), tuple(want))
        assert_same((*inputs, *segment.backward_weight(owed)), tuple(want))


class Once(torch.autograd.Function):
    """Gives away what it saved with its first backward."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, scale: Tensor) -> Tensor:
        ctx.kept = [values.detach(), scale.detach()]
        return values * scale

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        scale, values = ctx.kept.pop(), ctx.kept.pop()
        return gradient * scale, (gradient * values).sum((0, 1))


class InItsOwnMemory(torch.autograd.Function):
    """Finds its gradients in forward and scales them in place in backward, as some fused losses do."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, scale: Tensor) -> Tensor:
        ctx.found = scale.expand_as(values).clone(), values.sum((0, 1))
        return (values * scale).sum()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]
        return tuple(found.mul_(gradient) for found in ctx.found)  # type: ignore[return-value]


class Scaled(nn.Module):
    def __init__(self, function: type[torch.autograd.Function]) -> None:
        super().__init__()
        self.scale, self.function = nn.Parameter(torch.randn(WIDTH)), function

    def forward(self, values: Tensor) -> Tensor:
        return self.function.apply(values, self.scale)  # type: ignore[no-any-return,no-untyped-call]


@pytest.mark.parametrize("function", [Once, InItsOwnMemory])
def test_a_backward_that_cannot_run_twice_is_kept_whole(function: type[torch.autograd.Function]) -> None:
    split, whole = runner(Scaled(function)), runner(Scaled(function))
    whole.module.load_state_dict(split.module.state_dict())
    values = VALUES.clone().requires_grad_()
    for _ in range(2):
        frame, gradients = forward(split, values)
        inputs, owed = split.backward_input(frame, gradients)
        wanted = whole.backward(forward(whole, values)[0], gradients)
        assert_same(inputs, wanted.inputs)
        assert_same(split.backward_weight(owed), wanted.parameters)


def test_an_input_that_nothing_needs_is_left_none() -> None:
    segment = runner(nn.Linear(WIDTH, 3))
    frame, _ = forward(segment, VALUES)
    inputs, owed = segment.backward_input(frame, [None])
    assert inputs == (None,)
    assert segment.backward_weight(owed) == (None, None)


def test_the_graph_lives_until_its_weight_pass_and_no_longer() -> None:
    module = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.Tanh(), nn.Linear(WIDTH, WIDTH))
    alive: list[weakref.ref[Tensor]] = []

    def pack(tensor: Tensor) -> Tensor:
        kept = tensor.detach()
        alive.append(weakref.ref(kept))
        return kept

    def num_alive() -> int:
        return sum(ref() is not None for ref in alive)

    values = VALUES.clone().requires_grad_()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        output = module(values)
    owed: Owed | None
    seed = torch.ones_like(output)
    _, owed = backward_input([output], [seed], [values], list(module.parameters()))
    del output
    assert num_alive() > 0
    backward_weight(owed)
    del owed
    assert num_alive() == 0
