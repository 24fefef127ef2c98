"""Rare shapes of models: layers called twice, frozen and unused parameters, nothing to learn before a cut."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.support import toys
from tests.support.fleet import Fleet, Snapshot, assert_equal_bits
from varuna_runtime.partition import CutPoint
from varuna_runtime.spec.layout import ScheduleKind


def model_ending_in(*modules: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(toys.WIDTH, 12), *modules, nn.Linear(12, 3))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(12)

    def forward(self, values: Tensor) -> Tensor:
        return self.norm(torch.tanh(self.norm(values)))


class FrozenStatistics(Twice):
    def __init__(self) -> None:
        super().__init__()
        self.norm.eval()


class Sometimes(nn.Module):
    """Uses one of two branches, as a mixture of experts does."""

    def __init__(self) -> None:
        super().__init__()
        self.low = nn.Linear(12, 12)
        self.high = nn.Linear(12, 12)
        self.never = nn.Linear(12, 12)

    def forward(self, values: Tensor) -> Tensor:
        return self.low(values) if float(values.detach().sum()) < 0 else self.high(values)


class Instances(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.InstanceNorm1d(3, affine=True, track_running_stats=True)

    def forward(self, values: Tensor) -> Tensor:
        return self.norm(values.reshape(-1, 3, 4)).reshape(-1, 12)


class Transposed(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        return values.reshape(-1, 3, 4).transpose(1, 2)


class Shifted(nn.Module):
    """Returns a view that starts in the middle of an allocation."""

    def forward(self, values: Tensor) -> Tensor:
        return torch.cat([values.new_zeros(1), values.flatten()])[1:].reshape(-1, 12)


class Spread(nn.Module):
    """Its gradient is one number, expanded."""

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        return values, values.sum()


class Gathered(nn.Module):
    def forward(self, values: Tensor, total: Tensor) -> Tensor:
        return values + 0.01 * total


def frozen_start() -> nn.Module:
    model = model_ending_in(nn.Tanh())
    for parameter in model[0].parameters():
        parameter.requires_grad_(False)
    return model


class FrozenTie(nn.Module):
    """A frozen table that both ends use."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(toys.WIDTH, toys.WIDTH)
        self.first.weight.requires_grad_(False)
        self.middle = nn.Linear(toys.WIDTH, toys.WIDTH)
        self.last = nn.Linear(toys.WIDTH, 3)
        self.cut = CutPoint()

    def forward(self, values: Tensor) -> Tensor:
        values = self.cut(torch.tanh(self.first(values)))
        values = self.cut(torch.tanh(self.middle(values)))
        return self.last(functional.linear(values, self.first.weight))


class Twin(nn.Module):
    """Uses a tied weight through a list, as fused kernels do."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.layer = layer
        self.flat = [layer.weight, layer.bias]

    def forward(self, values: Tensor) -> Tensor:
        return torch.tanh(functional.linear(values, *self.flat))


def twins() -> nn.Module:
    layer = nn.Linear(12, 12)
    return model_ending_in(Twin(layer), nn.Linear(12, 12), Twin(layer), Twin(layer))


class Complex(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.filter = nn.Parameter(torch.randn(12, dtype=torch.complex64))

    def forward(self, values: Tensor) -> Tensor:
        return torch.fft.ifft(torch.fft.fft(values) * self.filter).real


class Conjugate(nn.Module):
    """Returns views that are conjugated and negated only when they are read."""

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        conjugate = torch.view_as_complex(values.reshape(-1, 6, 2)).conj()
        return conjugate, conjugate.imag


class Conjugated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.mixed = nn.Parameter(torch.randn(6, 12, dtype=torch.complex64))

    def forward(self, values: Tensor, imaginary: Tensor) -> Tensor:
        return (values @ self.mixed).real + imaginary.sum(1, keepdim=True)


class Clamped(nn.Module):
    """Clamps a gradient where it lies, and hands its values on twice."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12)

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        inner = self.inner(values)
        inner.register_hook(lambda gradient: gradient.clamp_(-0.001, 0.001))
        return inner, values


class Noisy(nn.Module):
    """Adds noise to a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(12, 12)

    def forward(self, values: Tensor) -> Tensor:
        inner: Tensor = self.inner(values)
        inner.register_hook(lambda gradient: gradient + 0.001 * torch.randn_like(gradient))
        return inner


class Added(nn.Module):
    """Its parameter and both inputs have one gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.randn(3, 12))

    def forward(self, one: Tensor, other: Tensor) -> Tensor:
        return one + self.shift + other


class EmptySkip(nn.Module):
    """Hands on a tensor without rows, whose gradient has no elements but is one."""

    def __init__(self) -> None:
        super().__init__()
        self.skip = nn.Linear(12, 12)

    def forward(self, values: Tensor) -> tuple[Tensor, Tensor]:
        return values, self.skip(values)[:0]


class EmptyUse(nn.Module):
    def forward(self, values: Tensor, nothing: Tensor) -> Tensor:
        return values + nothing.sum()


class SparseTable(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(5, 12, sparse=True)

    def forward(self, values: Tensor) -> Tensor:
        return values + self.table((values[:, 0] > 0).long())


MODELS = {
    "a norm called twice": lambda: model_ending_in(Twice()),
    "statistics kept frozen": lambda: model_ending_in(FrozenStatistics()),
    "branches": lambda: model_ending_in(Sometimes()),
    "instance norm": lambda: model_ending_in(Instances()),
    "a frozen start": frozen_start,
    "a frozen tie": FrozenTie,
    "a tied weight in a list": twins,
    "complex parameters": lambda: model_ending_in(Complex(), Complex()),
    "lazy conjugates": lambda: model_ending_in(Conjugate(), Conjugated()),
    "a hook that writes": lambda: model_ending_in(Clamped(), Added()),
    "noise in backward": lambda: model_ending_in(Noisy(), nn.Tanh()),
    "a skip without rows": lambda: model_ending_in(EmptySkip(), EmptyUse()),
    "sparse gradients": lambda: model_ending_in(SparseTable(), nn.Tanh()),
    "odd memory on the edges": lambda: model_ending_in(Transposed(), Shifted(), Spread(), Gathered()),
}


def trained(kind: str, layout: str, **changes: Any) -> Snapshot:
    training = toys.mlp_training(model=MODELS[kind], batch_size=12)
    return Fleet(training, layout, micro_batch_size=3, **changes).train(2)


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("layout", ["3x1", "2x2", "1x3"])
def test_a_rare_model_has_the_same_bits_on_every_layout(kind: str, layout: str) -> None:
    assert_equal_bits(trained(kind, layout, recompute=True), trained(kind, "1x1"))


@pytest.mark.parametrize("kind", MODELS)
def test_a_rare_model_has_the_same_bits_with_split_backwards(kind: str) -> None:
    assert_equal_bits(trained(kind, "2x1", schedule=ScheduleKind.ZERO_BUBBLE), trained(kind, "1x1"))


def test_every_call_of_a_norm_counts() -> None:
    tracked = trained("a norm called twice", "2x2").tensors["buffer:1.norm.num_batches_tracked"]
    assert int(tracked) == 2 * 4 * 2  # calls, micro-batches, steps


def test_frozen_statistics_and_parameters_stay_as_they_were() -> None:
    statistics = trained("statistics kept frozen", "2x2").tensors["buffer:1.norm.running_mean"]
    assert not statistics.any()
    fleet = Fleet(toys.mlp_training(model=frozen_start), "2x2")
    before = fleet.snapshot().tensors["param:0.weight"]
    assert fleet.train(1).tensors["param:0.weight"].equal(before)


def test_a_parameter_that_got_no_gradient_is_not_decayed() -> None:
    training = toys.mlp_training(model=MODELS["branches"], batch_size=12)
    fleet = Fleet(training, "2x2", micro_batch_size=3)
    before = fleet.snapshot().tensors["param:1.never.weight"]
    after = fleet.train(1).tensors
    assert after["param:1.never.weight"].equal(before)
    assert "optim:1.never.weight:exp_avg" not in after


def test_the_norm_counts_both_parts_of_complex_gradients() -> None:
    model = MODELS["complex parameters"]
    training = toys.mlp_training(model=model, batch_size=12, clip_grad_norm=None)
    fleet = Fleet(training, "1x1", micro_batch_size=12, virtual_replicas=1)
    (done,) = fleet.train(1).steps
    gradients = [p.grad for s in fleet.engines[0]._built.segments for _, p in s.parameters]
    wanted = torch.nn.utils.get_total_norm(
        [torch.view_as_real(g) if g.is_complex() else g for g in gradients]
    )
    assert done.grad_norm == pytest.approx(float(wanted), rel=1e-6)


def test_a_frozen_tie_is_restored_where_only_its_second_use_is() -> None:
    training = toys.mlp_training(model=FrozenTie, batch_size=12)
    whole = Fleet(training, "1x1", micro_batch_size=3)
    start = whole.snapshot()
    start.tensors["param:first.weight"].add_(1)
    whole.resume(start)
    parts = Fleet(training, "3x1", micro_batch_size=3)
    parts.resume(start)
    assert_equal_bits(parts.train(1), whole.train(1))
