from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.optim import lr_scheduler

from varuna_runtime.spec.errors import CheckpointRefused, InvalidInput, ModelRefused
from varuna_runtime.worker.optimizer import StageOptimizer
from varuna_runtime.worker.plain import from_text, to_text

OPTIMIZERS: dict[str, Callable[[Any], torch.optim.Optimizer]] = {
    "SGD": lambda named: torch.optim.SGD(named, lr=0.1),
    "momentum": lambda named: torch.optim.SGD(named, lr=0.1, momentum=0.9),
    "Adam": lambda named: torch.optim.Adam(named, lr=0.1),
    "AdamW": lambda named: torch.optim.AdamW(named, lr=0.1, amsgrad=True),
    "Adagrad": lambda named: torch.optim.Adagrad(named, lr=0.1),
    "Adafactor": lambda named: torch.optim.Adafactor(named, lr=0.1),
    "RMSprop": lambda named: torch.optim.RMSprop([p for _, p in named], lr=0.1),
}
SCHEDULERS: dict[str, Callable[[Any], Any] | None] = {
    "none": None,
    "steps": lambda o: lr_scheduler.MultiStepLR(o, [1, 3]),
    "cosine": lambda o: lr_scheduler.CosineAnnealingLR(o, 5),
    "lambda": lambda o: lr_scheduler.LambdaLR(o, lambda step: 0.5**step),
    "sequence": lambda o: lr_scheduler.SequentialLR(
        o, [lr_scheduler.LinearLR(o), lr_scheduler.ExponentialLR(o, 0.5)], milestones=[2]
    ),
    "plateau": lambda o: lr_scheduler.ReduceLROnPlateau(o, patience=0),
}


def named_parameters() -> list[tuple[str, nn.Parameter]]:
    generator = torch.Generator().manual_seed(3)
    here = nn.Parameter(torch.randn(4, 3, generator=generator))
    return [("here", here), ("elsewhere", nn.Parameter(torch.empty(2, device="meta")))]


def build(optimizer: str, scheduler: str) -> tuple[StageOptimizer, nn.Parameter]:
    named = named_parameters()
    stage = StageOptimizer(named, optimizer=OPTIMIZERS[optimizer], scheduler=SCHEDULERS[scheduler])
    return stage, named[0][1]


def take_step(stage: StageOptimizer, parameter: nn.Parameter, step: int) -> None:
    parameter.grad = torch.full_like(parameter, 0.1 * (step + 1))
    stage.step(loss=1.0)


@pytest.mark.parametrize(
    ("optimizer", "scheduler"),
    [(o, "none") for o in OPTIMIZERS] + [("momentum", s) for s in SCHEDULERS],
)
@pytest.mark.filterwarnings("ignore:The epoch parameter:UserWarning")
def test_a_restored_optimizer_goes_on_with_the_same_bits(optimizer: str, scheduler: str) -> None:
    original, weights = build(optimizer, scheduler)
    for step in range(2):
        take_step(original, weights, step)
    restored, copied = build(optimizer, scheduler)
    with torch.no_grad():
        copied.copy_(weights)
    restored.load(
        {name: t.clone() for name, t in original.tensors(["here"]).items()},
        groups=original.groups_text(),
        scheduler=original.scheduler_text(),
    )
    for step in range(2, 4):
        take_step(original, weights, step)
        take_step(restored, copied, step)
    assert copied.equal(weights)
    assert restored.groups_text() == original.groups_text()


def test_kernels_that_may_round_differently_are_pinned_off() -> None:
    made = torch.optim.AdamW([nn.Parameter(torch.zeros(1))], foreach=True)
    StageOptimizer([("w", made.param_groups[0]["params"][0])], optimizer=lambda named: made, scheduler=None)
    assert made.param_groups[0]["foreach"] is False
    assert made.param_groups[0]["fused"] is False


def test_other_groups_than_those_saved_are_refused() -> None:
    original, _ = build("Adam", "none")
    other = StageOptimizer(
        [("new", nn.Parameter(torch.zeros(1)))], optimizer=OPTIMIZERS["Adam"], scheduler=None
    )
    with pytest.raises(CheckpointRefused, match="parameter groups differ"):
        other.load({}, groups=original.groups_text(), scheduler="")


def test_plain_values_survive_their_text() -> None:
    value = {
        1: (0.1, 1e-300),
        "none": None,
        "list": [True, float("inf")],
        "counter": Counter({3: 2}),
        "map": {},
    }
    restored = from_text(to_text(value, of="a test"))
    assert restored == value
    assert isinstance(restored, dict)
    assert isinstance(restored["counter"], Counter)


def test_a_value_that_cannot_be_restored_is_refused_by_its_owner() -> None:
    with pytest.raises(ModelRefused, match="my scheduler keeps a object"):
        to_text([object()], of="my scheduler")


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (torch.optim.LBFGS, "LBFGS evaluates the model several times"),
        (torch.optim.SparseAdam, "SparseAdam takes sparse gradients only"),
    ],
)
def test_an_optimizer_that_cannot_step_on_dense_sums_is_refused(make: Any, reason: str) -> None:
    with pytest.raises(InvalidInput, match=reason):
        StageOptimizer(
            named_parameters(), optimizer=lambda named: make([p for _, p in named]), scheduler=None
        )


@pytest.mark.parametrize("made", [None, {"scheduler": 1}, 0.1])
def test_a_scheduler_that_is_none_is_refused(made: object) -> None:
    with pytest.raises(InvalidInput, match=f"scheduler returned {type(made).__name__}"):
        StageOptimizer(named_parameters(), optimizer=OPTIMIZERS["SGD"], scheduler=lambda _: made)


HOSTILE = (
    *("5", "{", '"x"', "[5]", '[{"map":[]}]', "[" * 100_000, '[{"map":[["params",5]]}]', '{"tuple":5}', "{}"),
    '{"map":[["step",5]]}',
    '{"map":[["get_lr",null]]}',
)


@pytest.mark.parametrize("text", HOSTILE)
def test_groups_and_a_scheduler_of_a_hostile_checkpoint_are_refused(text: str) -> None:
    stepper = StageOptimizer(named_parameters(), optimizer=OPTIMIZERS["Adam"], scheduler=SCHEDULERS["cosine"])
    with pytest.raises(CheckpointRefused):
        stepper.restoring(groups=text, scheduler="")
    with pytest.raises(CheckpointRefused):
        stepper.restoring(groups="", scheduler=text)


def stepped(optimizer: str) -> tuple[StageOptimizer, dict[str, Tensor]]:
    stage, weights = build(optimizer, "none")
    take_step(stage, weights, 0)
    return stage, {name: tensor.clone() for name, tensor in stage.tensors(["here"]).items()}


@pytest.mark.parametrize(
    ("optimizer", "key", "changed", "told"),
    [
        ("Adam", "exp_avg", lambda t: t[:2], r"exp_avg of here has shape \(2, 3\), wanted \(4, 3\)"),
        ("Adam", "exp_avg_sq", lambda t: t.double(), "exp_avg_sq of here has dtype float64, wanted float32"),
        ("Adam", "step", lambda t: t.expand(4, 3), r"step of here has shape \(4, 3\), wanted \(\)"),
        ("momentum", "momentum_buffer", lambda t: t.t(), r"has shape \(3, 4\), wanted \(4, 3\)"),
        ("Adagrad", "sum", lambda t: t.flatten(), r"sum of here has shape \(12,\), wanted \(4, 3\)"),
        ("Adafactor", "row_var", lambda t: t.t(), r"row_var of here has shape \(1, 4\), wanted \(4, 1\)"),
        ("RMSprop", "square_avg", lambda t: t.half(), "has dtype float16, wanted float32"),
    ],
)
def test_state_that_the_optimizer_does_not_keep_is_refused_by_name(
    optimizer: str, key: str, changed: Callable[[Tensor], Tensor], told: str
) -> None:
    stage, tensors = stepped(optimizer)
    tensors[f"optim:here:{key}"] = changed(tensors[f"optim:here:{key}"])
    with pytest.raises(CheckpointRefused, match=told):
        build(optimizer, "none")[0].load(tensors, groups=stage.groups_text(), scheduler="")


def test_a_slice_of_another_dtype_is_refused_by_name() -> None:
    stage, tensors = stepped("Adam")
    flat = tensors.pop("optim:here:exp_avg").flatten()
    tensors["optim:here:exp_avg@0"] = flat[:5]
    tensors["optim:here:exp_avg@5"] = flat[5:].half()
    with pytest.raises(CheckpointRefused, match="exp_avg of here has dtype float16, wanted float32"):
        build("Adam", "none")[0].load(tensors, groups=stage.groups_text(), scheduler="")


def test_state_that_lacks_a_key_is_refused_by_name() -> None:
    stage, tensors = stepped("AdamW")
    del tensors["optim:here:max_exp_avg_sq"]
    with pytest.raises(CheckpointRefused, match="lacks the optimizer's max_exp_avg_sq of here"):
        build("AdamW", "none")[0].load(tensors, groups=stage.groups_text(), scheduler="")


def test_state_of_an_optimizer_that_is_not_of_torch_is_taken_as_it_is() -> None:
    class Own(torch.optim.SGD):
        pass

    made = StageOptimizer(
        named_parameters(), optimizer=lambda named: Own(named, momentum=0.9), scheduler=None
    )
    made.load({"optim:here:anything": torch.zeros(7)}, groups=made.groups_text(), scheduler="")
    assert made.tensors(["here"])["optim:here:anything"].equal(torch.zeros(7))


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_weights_alone_leave_an_optimizer_as_it_was_made(optimizer: str) -> None:
    restored, weights = build(optimizer, "none")
    restored.load({}, groups="", scheduler="")
    take_step(restored, weights, 0)
    fresh, others = build(optimizer, "none")
    take_step(fresh, others, 0)
    assert weights.equal(others)
