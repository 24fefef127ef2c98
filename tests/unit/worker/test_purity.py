"""Whatever a forward changes beside running statistics is refused by its name (contract E7)."""

import random
from collections.abc import Callable
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support import toys
from tests.support.fleet import Fleet
from varuna_runtime.spec.errors import ModelRefused
from varuna_runtime.spec.job import Exactness
from varuna_runtime.worker.purity import Watch


class Stateful(nn.Module):
    """Applies `change` to itself in every forward."""

    def __init__(self, change: Callable[["Stateful"], object]) -> None:
        super().__init__()
        self.scale = nn.Linear(3, 3)
        self.register_buffer("seen", torch.zeros(3))
        self.change = change
        self.mean = torch.zeros(3)
        self.calls = 0
        self.history: list[float] = []
        self.counts = {"calls": [0]}
        self.state = SimpleNamespace(calls=0)
        self.array = np.zeros(3)
        self.nothing: Tensor | None = None
        self.torch_generator = torch.Generator()
        self.numpy_generator = np.random.default_rng(0)
        self.old_numpy_generator = np.random.RandomState(0)
        self.python_generator = random.Random(0)

    def forward(self, values: Tensor) -> Tensor:
        self.change(self)
        return self.scale(values)


CHANGES: dict[str, tuple[str, Callable[[Stateful], object]]] = {
    "a new tensor": ("mean", lambda m: setattr(m, "mean", m.mean * 0.9)),
    "a tensor in place": ("mean", lambda m: m.mean.mul_(0.9)),
    "a tensor that is kept for later": ("nothing", lambda m: setattr(m, "nothing", torch.ones(1))),
    "a counter": ("calls", lambda m: setattr(m, "calls", m.calls + 1)),
    "a list": ("history", lambda m: m.history.append(0.0)),
    "a list in a dict": ("counts", lambda m: m.counts["calls"].append(1)),
    "an object": ("state", lambda m: setattr(m.state, "calls", 1)),
    "an array": ("array", lambda m: m.array.__iadd__(1)),
    "an attribute that was not there": ("new", lambda m: setattr(m, "new", 1)),
    "a generator of torch": ("torch_generator", lambda m: torch.rand(1, generator=m.torch_generator)),
    "a generator of numpy": ("numpy_generator", lambda m: m.numpy_generator.random()),
    "an old generator of numpy": ("old_numpy_generator", lambda m: m.old_numpy_generator.rand()),
    "a generator of Python": ("python_generator", lambda m: m.python_generator.random()),
    "a buffer behind its version": ("seen", lambda m: m.seen.data.add_(1)),
    "a parameter behind its version": ("scale.weight", lambda m: m.scale.weight.data.clamp_(-0.1, 0.1)),
}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda m: m.scale.eval(), "training of 0.scale"),
        (
            lambda m: m.register_buffer("new", torch.ones(1)),
            "the set of parameters, buffers and modules of 0",
        ),
    ],
)
def test_a_change_of_the_module_itself_is_seen(change: Callable[[Stateful], object], message: str) -> None:
    module = nn.Sequential(Stateful(change))
    watch = Watch(module)
    before = watch.look(())
    module(torch.ones(2, 3))
    assert watch.changes(before, ()) == [message]


@pytest.mark.parametrize("kind", CHANGES)
def test_a_change_is_seen_by_name(kind: str) -> None:
    name, change = CHANGES[kind]
    module = nn.Sequential(Stateful(change))
    watch = Watch(module)
    before = watch.look(())
    module(torch.ones(2, 3))
    assert watch.changes(before, ()) == [f"0.{name}"]


def test_what_changes_between_two_forwards_of_a_step_is_seen_and_between_two_steps_is_not() -> None:
    module = nn.Linear(3, 3)
    watch = Watch(module)
    found = []
    for is_new_step in [True] * 5 + [False]:
        with torch.no_grad():
            module.weight.add_(1.0)
        if is_new_step:
            watch.begin()
        found.append(watch.changes(watch.look(()), ()))
    assert found == [[], [], [], [], [], ["weight"]]


def test_a_forward_that_changes_nothing_is_let_be() -> None:
    module = nn.Sequential(Stateful(lambda m: (m.mean + 1, m.history[:], m.state.calls)), nn.Tanh())
    watch = Watch(module)
    for _ in range(2):
        before = watch.look(())
        module(torch.ones(2, 3))
        assert not watch.changes(before, ())


def test_a_change_that_begins_late_is_seen_at_once_of_a_tensor_and_soon_of_an_attribute() -> None:
    for change, latest in (
        (lambda m: m.seen.add_(1), 0),
        (lambda m: setattr(m, "calls", m.calls + 1), 15),
    ):
        module = Stateful(lambda m: None)
        watch = Watch(module)
        assert not any(changed_in(watch, module) for _ in range(40))
        module.change = change
        assert any(changed_in(watch, module) for _ in range(latest + 1))


def changed_in(watch: Watch, module: nn.Module) -> list[str]:
    before = watch.look(())
    module(torch.ones(2, 3))
    return watch.changes(before, ())


def test_values_that_are_not_numbers_are_no_change() -> None:
    module = Stateful(lambda m: None)
    module.calls = float("nan")  # type: ignore[assignment]
    module.seen.fill_(float("nan"))
    watch = Watch(module)
    assert not watch.changes(watch.look(()), ())


def test_what_weight_norm_computes_before_a_forward_is_no_change() -> None:
    class Wide(nn.Linear):
        pass

    with pytest.warns(FutureWarning):
        module = torch.nn.utils.weight_norm(Wide(3, 3))
    watch = Watch(module)
    before = watch.look(())
    module(torch.ones(2, 3))
    assert not watch.changes(before, ())


def model_with(change: Callable[[Stateful], object]) -> nn.Module:
    return nn.Sequential(nn.Linear(toys.WIDTH, 3), Stateful(change))


@pytest.mark.parametrize("layout", ["1x1", "2x1", "1x2"])
def test_a_counter_in_forward_is_refused_in_the_first_step(layout: str) -> None:
    training = toys.mlp_training(model=lambda: model_with(CHANGES["a counter"][1]))
    with pytest.raises(ModelRefused, match=r"segment 1 \(Chain\) changes 1\.calls"):
        Fleet(training, layout).train(1)


def test_statistical_exactness_lets_a_forward_count() -> None:
    training = toys.mlp_training(model=lambda: model_with(CHANGES["a counter"][1]))
    Fleet(training, "2x1", exactness=Exactness.STATISTICAL).train(1)


def parametrized() -> nn.Module:
    return nn.utils.parametrizations.spectral_norm(nn.Linear(toys.WIDTH, 3))


def hooked() -> nn.Module:
    return nn.utils.spectral_norm(nn.Linear(toys.WIDTH, 3))


@pytest.mark.parametrize("layer", [parametrized, hooked])
def test_spectral_norm_is_refused_with_what_to_do_instead(layer: Callable[[], nn.Module]) -> None:
    training = toys.mlp_training(model=lambda: nn.Sequential(nn.Linear(toys.WIDTH, toys.WIDTH), layer()))
    with pytest.raises(ModelRefused, match="power iteration in every forward: use weight_norm"):
        Fleet(training, "1x1").train(1)


def test_weight_norm_which_is_named_instead_trains() -> None:
    def model() -> nn.Module:
        return nn.Sequential(nn.utils.parametrizations.weight_norm(nn.Linear(toys.WIDTH, 3)))

    Fleet(toys.mlp_training(model=model), "1x1").train(1)
