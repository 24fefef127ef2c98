"""A batch that is a dict reaches every kind of model by name; the example of it leaves no trace."""

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tests.support.fleet import Fleet, assert_equal_bits
from tests.support.toys import momentum_sgd
from varuna_runtime.partition import Arguments, CutPoint
from varuna_runtime.spec.errors import InvalidInput, ModelRefused
from varuna_runtime.worker.partitioning import example_in_child, example_of, partition_of
from varuna_runtime.worker.training import Training


class Records:
    """Samples with more keys than the model takes, one of them no tensor."""

    def __init__(self) -> None:
        self.reads = 0

    def __len__(self) -> int:
        return 9

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.reads += 1
        generator = torch.Generator().manual_seed(index)
        x, y = (torch.randn(4, generator=generator) for _ in range(2))
        return {"scale": y.abs(), "x": x, "y": y, "name": f"sample {index}"}


class First(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor, bias: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
        assert bias is None
        value = self.linear(x)
        return value if scale is None else value * scale


class Marked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.cut, self.last = First(), CutPoint(), nn.Linear(4, 4)

    def forward(self, x: Tensor, bias: Tensor | None = None, scale: Tensor | None = None) -> Tensor:
        return self.last(self.cut(self.first(x, scale=scale)))


class Whole(nn.Module):
    """Cannot be traced."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = First(), nn.Linear(4, 4)

    def forward(self, x: Tensor, scale: Tensor) -> Tensor:
        value = self.first(x, scale=scale)
        return self.last(value if value.sum() > 1e9 else value.abs())


class Plain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = First(), nn.Linear(4, 4)

    def forward(self, **inputs: Tensor) -> Tensor:
        return self.last(self.first(inputs["x"], scale=inputs["scale"]))


def sequence() -> nn.Module:
    return nn.Sequential(First(), nn.Linear(4, 4))


def error(output: Tensor, batch: dict[str, Tensor]) -> Tensor:
    return (output - batch["y"]).square().mean()


def training(**changes: Any) -> Training:
    base: dict[str, Any] = {
        "loss": error,
        "optimizer": momentum_sgd,
        "dataset": Records(),
        "batch_size": 5,
        "steps": 2,
        "seed": 3,
    }
    return Training(**{**base, **changes})


@pytest.mark.parametrize("build", [sequence, Marked, Whole, Plain])
def test_what_forward_accepts_is_given_by_name(build: Any):
    given = training(model=build)
    by_hand = training(model=build, inputs=lambda batch: {"scale": batch["scale"], "x": batch["x"]})
    model = partition_of(given)
    layout = f"{min(2, model.num_segments)}x1"
    assert_equal_bits(Fleet(given, layout, model=model).train(2), Fleet(by_hand, layout).train(2))
    assert {"x", "scale"} <= set(model.arguments.keywords)
    assert bool(model.warnings) == (build is Whole)


def test_a_key_that_forward_needs_and_a_batch_without_it_are_told():
    with pytest.raises(ModelRefused, match=r"First.forward wants x; the batch is a dict with scale"):
        partition_of(training(model=sequence, inputs=lambda batch: {"scale": batch["scale"]}))
    bound = training(model=sequence, arguments=Arguments(keywords=("x",)))
    with pytest.raises(InvalidInput, match=r"seen \['y'\], wanted a dict with a tensor 'x'"):
        bound.model_inputs({"y": torch.ones(1)})


class Away(Records):
    """Data that is only where the nodes are."""

    def __getitem__(self, index: int) -> dict[str, Any]:
        raise FileNotFoundError("/data/rows")


class Strict(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.cut, self.last = First(), CutPoint(), nn.Linear(4, 4)

    def forward(self, scale: Tensor, x: Tensor) -> Tensor:
        return self.last(self.cut(self.first(x, scale=scale)))


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = First()

    def forward(self, scale: Tensor, x: Tensor) -> Tensor:
        return self.first(x, scale=scale)


def strict_sequence() -> nn.Module:
    return nn.Sequential(Scaled(), nn.Linear(4, 4))


@pytest.mark.parametrize("build", [Strict, strict_sequence])
def test_a_cut_model_whose_forward_requires_all_it_takes_needs_no_data_to_be_cut(build: Any):
    assert partition_of(training(model=build, dataset=Away())).num_segments == 2


@pytest.mark.parametrize("build", [Marked, Plain, sequence])
def test_another_model_needs_its_data_where_it_is_cut(build: Any):
    with pytest.raises(FileNotFoundError):
        partition_of(training(model=build, dataset=Away()))


@pytest.mark.parametrize("build", [Strict, strict_sequence])
def test_what_forward_requires_is_given_by_name_or_place(build: Any):
    by_name = training(model=build)
    by_place = training(model=build, inputs=lambda batch: (batch["scale"], batch["x"]))
    assert_equal_bits(Fleet(by_name, "2x1").train(2), Fleet(by_place, "2x1").train(2))


def test_an_example_is_the_same_from_a_child_which_keeps_what_it_opens():
    given = training(model=sequence)
    assert example_in_child(given, within_s=60) == example_of(training(model=sequence))
    assert given.dataset.reads == 0


def test_a_data_set_that_cannot_be_read_says_so():
    given = training(model=sequence, inputs=lambda batch: batch["none"])
    with pytest.raises(ModelRefused, match="first samples of the data set cannot be read: KeyError"):
        example_in_child(given, within_s=60)


class Pairs:
    def __len__(self) -> int:
        return 5

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor, Tensor]:
        return torch.ones(4), torch.ones(4), torch.ones(4)


class Backwards(nn.Module):
    """Takes no names."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 4)

    def forward(self, *values: Tensor) -> Tensor:
        return self.linear(values[-1])


def pairs(model: Any) -> Training:
    return training(model=model, loss=lambda output, batch: output.sum(), dataset=Pairs())


def test_another_number_of_inputs_than_forward_takes_is_refused_before_training():
    with pytest.raises(ModelRefused, match=r"Linear.forward\(input: .*3 positional inputs.*pass inputs="):
        partition_of(pairs(lambda: nn.Linear(4, 4)))


def test_a_sequence_refuses_another_number_of_inputs_at_the_first_batch():
    given = pairs(lambda: nn.Sequential(nn.Linear(4, 4)))
    with pytest.raises(InvalidInput, match=r"seen 3 positional inputs, wanted 1, .*\(input\); pass inputs="):
        Fleet(given, "1x1").train(1)


def test_a_dict_for_a_forward_without_names_is_refused():
    training = Training(
        model=Backwards,
        loss=lambda output, batch: output.sum(),
        optimizer=momentum_sgd,
        dataset=Records(),
        batch_size=2,
    )
    with pytest.raises(
        ModelRefused, match=r"Backwards.forward wants positional arguments; the batch is a dict"
    ):
        partition_of(training)
