"""Where models are cut: names, carried tensors, tied parameters, and what is refused."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from varuna_runtime.partition import CutPoint, PartitionedModel, cut
from varuna_runtime.spec.errors import ModelRefused
from varuna_runtime.spec.model import TiedParameter, TiedUse

CPU = torch.device("cpu")


def names(model: PartitionedModel) -> list[list[str]]:
    return [[tensor.name for tensor in segment.tensors] for segment in model.record_segments]


def run(model: PartitionedModel, *inputs: Tensor) -> Any:
    """Send inputs through all segments, as ranks would."""
    values: tuple[Tensor, ...] = inputs
    result: Any = None
    for index in range(model.num_segments):
        result = model.materialise(index, seed=0, device=CPU)(*values)
        values = result if isinstance(result, tuple) else (result,)
    return result


def uncut(build: Callable[[], nn.Module], model: PartitionedModel) -> nn.Module:
    """Return the plain model with the same initial values."""
    plain = build()
    missing, unexpected = plain.load_state_dict(model.initial_state(seed=0), strict=False)
    tied_names = {use.name for tied in model.tied for use in tied.uses[1:]}
    assert (set(missing) - tied_names, unexpected) == (set(), [])
    return plain


class Decoder(nn.Module):
    """Marked in a loop, with a skip connection, a mask, a buffer and a tied head."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(11, 6)
        self.blocks = nn.ModuleList([nn.Linear(6, 6) for _ in range(3)])
        self.head = nn.Linear(6, 11, bias=False)
        self.head.weight = self.embedding.weight
        self.register_buffer("scale", torch.full((6,), 0.5))
        self.mark = CutPoint()

    def forward(self, ids: Tensor) -> Tensor:
        skip = hidden = self.embedding(ids)
        mask = (ids > 3).unsqueeze(-1)
        for number, block in enumerate(self.blocks):
            hidden = self.mark(block(hidden) * mask + number * skip)
        return self.head(hidden * self.scale)


def test_children_of_a_sequence_are_its_segments_under_its_names():
    model = cut(
        lambda: nn.Sequential(OrderedDict(first=nn.Linear(2, 3), act=nn.ReLU(), last=nn.Linear(3, 2)))
    )
    assert [segment.name for segment in model.record_segments] == ["first", "act", "last"]
    assert names(model) == [["first.weight", "first.bias"], [], ["last.weight", "last.bias"]]
    assert model.record_segments[0].param_bytes == 4 * (6 + 3)


@pytest.mark.parametrize("kind", [list, tuple, nn.ModuleList])
def test_a_list_of_modules_is_a_sequence(kind: Callable[[list[nn.Module]], Any]):
    model = cut(lambda: kind([nn.Linear(2, 2), nn.Linear(2, 2)]))
    assert names(model) == [["0.weight", "0.bias"], ["1.weight", "1.bias"]]


def test_marks_in_a_sequence_merge_what_is_between_them():
    model = cut(
        lambda: nn.Sequential(
            nn.Linear(2, 3), nn.ReLU(), CutPoint(), nn.Linear(3, 3), nn.Tanh(), CutPoint(), CutPoint()
        )
    )
    assert [segment.name for segment in model.record_segments] == ["0..1", "3..4"]
    assert names(model) == [["0.weight", "0.bias"], ["3.weight", "3.bias"]]


def test_a_module_without_marks_is_one_segment():
    model = cut(lambda: nn.TransformerDecoderLayer(8, 2, 8))
    assert model.num_segments == 1
    assert list(model.state_names(0)) == list(nn.TransformerDecoderLayer(8, 2, 8).state_dict())


def test_a_sequence_with_a_forward_of_its_own_is_not_taken_apart():
    class Doubled(nn.Sequential):
        def forward(self, value: Tensor) -> Tensor:
            return 2 * super().forward(value)

    assert cut(lambda: Doubled(nn.Linear(2, 2), nn.Linear(2, 2))).num_segments == 1


def test_tuples_pass_positionally_between_children():
    class Split(nn.Module):
        def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
            return value + 1, value

    class Join(nn.Module):
        def forward(self, one: Tensor, other: Tensor) -> Tensor:
            return one - other

    for build in (
        lambda: [Split(), Join()],
        lambda: nn.Sequential(Split(), Join(), CutPoint(), nn.Identity()),
    ):
        assert run(cut(build), torch.zeros(2)).tolist() == [1.0, 1.0]


def test_a_marked_forward_is_cut_and_computes_the_same():
    model = cut(Decoder)
    assert model.num_segments == 4
    assert names(model) == [
        ["embedding.weight", "blocks.0.weight", "blocks.0.bias"],
        ["blocks.1.weight", "blocks.1.bias"],
        ["blocks.2.weight", "blocks.2.bias"],
        ["scale"],
    ]
    ids = torch.randint(11, (2, 5))
    assert torch.equal(run(model, ids), uncut(Decoder, model)(ids))


def test_a_skip_connection_and_a_mask_are_carried_after_the_marked_tensor():
    model = cut(Decoder)
    sent = model.materialise(0, seed=0, device=CPU)(torch.randint(11, (2, 5)))
    assert [tuple(value.shape) for value in sent] == [(2, 5, 6), (2, 5, 6), (2, 5, 1)]
    assert sent[2].dtype == torch.bool


def test_a_tied_parameter_is_recorded_once_and_bit_equal_in_each_segment():
    model = cut(Decoder)
    uses = (TiedUse(segment=0, name="embedding.weight"), TiedUse(segment=3, name="head.weight"))
    assert model.tied == (TiedParameter(uses=uses),)
    assert list(model.state_names(3)) == ["head.weight", "scale"]
    first, last = (model.materialise(index, seed=0, device=CPU) for index in (0, 3))
    assert torch.equal(first.get_parameter("embedding.weight"), last.get_parameter("head.weight"))


def test_a_parameter_used_twice_inside_a_segment_stays_one():
    def build() -> nn.Module:
        module = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
        module["b"].weight = module["a"].weight
        return nn.Sequential(module)

    model = cut(build)
    assert model.tied == ()
    assert names(model) == [["0.a.weight", "0.a.bias", "0.b.bias"]]
    real = model.materialise(0, seed=0, device=CPU)
    assert real.get_parameter("0.b.weight") is real.get_parameter("0.a.weight")


def test_a_module_called_on_both_sides_of_a_mark_is_tied():
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer, self.mark = nn.Linear(2, 2), CutPoint()

        def forward(self, value: Tensor) -> Tensor:
            return self.layer(self.mark(self.layer(value)))

    model = cut(Twice)
    assert [[use.name for use in tied.uses] for tied in model.tied] == [
        ["layer.weight"] * 2,
        ["layer.bias"] * 2,
    ]
    assert names(model) == [["layer.weight", "layer.bias"], []]
    value = torch.ones(1, 2)
    assert torch.equal(run(model, value), uncut(Twice, model)(value))


def test_a_module_twice_in_a_sequence_is_tied():
    def build() -> nn.Module:
        layer = nn.Linear(2, 2)
        return nn.Sequential(layer, nn.ReLU(), layer)

    model = cut(build)
    assert [[use.name for use in tied.uses] for tied in model.tied] == [
        ["0.weight", "2.weight"],
        ["0.bias", "2.bias"],
    ]


def test_a_shared_buffer_is_state_of_its_first_segment_only():
    def build() -> nn.Module:
        layers = [nn.Linear(2, 2), nn.Linear(2, 2)]
        table = torch.arange(2.0)
        for layer in layers:
            layer.register_buffer("table", table)
        return nn.Sequential(*layers)

    model = cut(build)
    assert list(model.state_names(1)) == ["1.weight", "1.bias"]
    assert model.materialise(1, seed=0, device=CPU).get_buffer("1.table").tolist() == [0.0, 1.0]


def test_python_that_depends_on_values_may_stay_in_unmarked_submodules():
    class Branching(nn.Module):
        def forward(self, value: Tensor) -> Tensor:
            return value + 1 if value.sum() > 0 else value - 1

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.mark = Branching(), CutPoint()

        def forward(self, value: Tensor) -> Tensor:
            return self.inner(self.mark(self.inner(value)))

    assert run(cut(Net), torch.ones(1)).tolist() == [3.0]


def test_constants_and_plain_tensor_attributes_of_a_marked_forward_work():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.mark = torch.arange(4.0), CutPoint()

        def forward(self, value: Tensor) -> Tensor:
            return self.mark(value + self.table[:2]) * torch.tensor([2.0, 3.0]) + self.table[2:]

    model = cut(Net)
    assert run(model, torch.ones(2)).tolist() == [4.0, 9.0]
    assert names(model) == [[], []]


def test_dropout_of_a_marked_forward_follows_train_and_eval():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.drop, self.mark = nn.Dropout(0.5), CutPoint()

        def forward(self, value: Tensor) -> Tensor:
            return self.mark(self.drop(value)) * 1

    segment = cut(Net).materialise(0, seed=0, device=CPU)
    assert segment(torch.ones(100)).eq(0).any()
    assert segment.eval()(torch.ones(100)).eq(1).all()


def test_arguments_of_a_marked_forward_that_have_a_default_keep_it():
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mark = CutPoint()

        def forward(
            self, value: Tensor, scale: Tensor, mask: Tensor | None = None, *, shift: int = 2
        ) -> Tensor:
            hidden = self.mark(value * scale)
            return hidden + shift if mask is None else hidden * mask

    assert run(cut(Net), torch.ones(1), torch.full((1,), 3.0)).tolist() == [5.0]


def test_a_sequence_with_marks_inside_its_children_is_traced():
    class Inner(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.mark, self.other = nn.Linear(2, 2), CutPoint(), nn.Linear(2, 2)

        def forward(self, value: Tensor) -> Tensor:
            return self.other(self.mark(self.one(value)))

    def build() -> nn.Module:
        return nn.Sequential(nn.Linear(2, 2), Inner(), nn.ReLU())

    model = cut(build)
    assert [segment[0] for segment in names(model)] == ["0.weight", "1.other.weight"]
    value = torch.ones(1, 2)
    assert torch.equal(run(model, value), uncut(build, model)(value))


def marked(forward: Callable[[Any, Tensor], Any], **modules: nn.Module) -> Callable[[], nn.Module]:
    """Return a factory of a module with this forward and a CutPoint named `mark`."""

    class Marked(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mark = CutPoint()
            for name, module in modules.items():
                self.add_module(name, module)

        def forward(self, value: Tensor) -> Any:
            return forward(self, value)

    return Marked


def branches_on_a_value(net: Any, value: Tensor) -> Tensor:
    return net.mark(value) if value.sum() > 0 else value


def size_crosses(net: Any, value: Tensor) -> Tensor:
    rows = value.shape[0]
    return net.mark(value.flatten()).view(rows, -1)


def computed_size_crosses(net: Any, value: Tensor) -> Tensor:
    half = value.size(0) // 2
    return net.mark(value)[:half]


def draws_outside_modules(net: Any, value: Tensor) -> Tensor:
    return net.mark(value) * torch.rand(2)


def nothing_crosses(net: Any, value: Tensor) -> Tensor:
    net.mark(value + 1)
    return torch.ones(2)


def marks_a_constant(net: Any, value: Tensor) -> Tensor:
    net.mark(3)
    return value


@pytest.mark.parametrize(
    ("forward", "message"),
    [
        (branches_on_a_value, r"Marked\.forward cannot be cut.*symbolically traced.*submodule without marks"),
        (size_crosses, r"value 'getitem'.*crosses CutPoint 0 but is not a tensor"),
        (computed_size_crosses, r"value 'floordiv'.*not a tensor"),
        (draws_outside_modules, r"Marked: forward draws random numbers \(aten\.rand"),
        (nothing_crosses, r"nothing computed before CutPoint 0"),
        (marks_a_constant, r"CutPoint 'mark' is not put on a value"),
    ],
)
def test_a_forward_that_cannot_be_cut_is_refused_by_name(forward: Callable[..., Any], message: str):
    with pytest.raises(ModelRefused, match=message):
        cut(marked(forward))


def test_a_parameter_that_a_marked_forward_never_uses_is_refused_by_name():
    with pytest.raises(ModelRefused, match=r"'spare\.weight' is never used"):
        cut(lambda: marked(lambda net, value: net.mark(value) + 1, spare=nn.Linear(2, 2))())


def test_running_statistics_on_both_sides_of_a_cut_are_refused_by_name():
    def build() -> nn.Module:
        norm = nn.BatchNorm1d(2)
        return nn.Sequential(norm, nn.Linear(2, 2), norm)

    with pytest.raises(ModelRefused, match=r"module '2' keeps running statistics"):
        cut(build)


def test_a_tuple_that_would_cross_a_mark_is_refused_when_it_does():
    class Pair(nn.Module):
        def forward(self, value: Tensor) -> tuple[Tensor, Tensor]:
            return value, value

    def forward(net: Any, value: Tensor) -> Tensor:
        pair = net.pair(value)
        return net.mark(pair[0]) + pair[1]

    segment = cut(lambda: marked(forward, pair=Pair())()).materialise(0, seed=0, device=CPU)
    with pytest.raises(ModelRefused, match="'pair' would cross a cut as tuple"):
        segment(torch.ones(1))


def test_a_child_that_returns_no_tensor_is_refused_when_it_does():
    class Named(nn.Module):
        def forward(self, value: Tensor) -> dict[str, Tensor]:
            return {"value": value}

    segment = cut(lambda: nn.Sequential(Named(), nn.Identity())).materialise(0, seed=0, device=CPU)
    with pytest.raises(ModelRefused, match="'output 0 of 0' would cross a cut as dict"):
        segment(torch.ones(1))


@pytest.mark.parametrize(
    ("built", "message"),
    [
        ([], "without modules"),
        ([nn.ReLU(), 3], r"model\[1\]: seen int"),
        ("net", "seen str, wanted an nn.Module"),
        (None, "seen NoneType"),
    ],
)
def test_what_is_no_model_is_refused(built: Any, message: str):
    with pytest.raises(ModelRefused, match=message):
        cut(lambda: built)


class Borrowing(nn.Module):
    """Uses another module's weight without having it as its own."""

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.borrowed = {"weight": layer.weight}


def test_a_parameter_that_another_segment_hides_in_a_dict_is_refused():
    def build() -> nn.Module:
        layer = nn.Linear(2, 2)
        return nn.Sequential(layer, Borrowing(layer))

    with pytest.raises(ModelRefused, match=r"'1\.borrowed\.0' is a parameter of another segment"):
        cut(build)


def test_a_gradient_hook_on_a_parameter_is_refused():
    def build(method: str) -> nn.Module:
        layer = nn.Linear(2, 2)
        getattr(layer.weight, method)(lambda gradient: gradient * 0)
        return nn.Sequential(layer, nn.Tanh())

    for method in ("register_hook", "register_post_accumulate_grad_hook"):
        with pytest.raises(ModelRefused, match=r"parameter '0\.weight' has a gradient hook"):
            cut(lambda method=method: build(method))


def test_segments_made_together_share_a_tied_parameter_wherever_it_is_kept():
    def build() -> nn.Module:
        one, other = nn.Linear(2, 2), nn.Linear(2, 2)
        other.weight = one.weight
        other.also = [one.weight]
        return nn.Sequential(one, other)

    model = cut(build)
    shared: dict[int, Tensor] = {}
    first, second = (model.materialise(i, seed=0, device=CPU, shared=shared) for i in range(2))
    weight = first.get_parameter("0.weight")
    assert second.get_parameter("1.weight") is weight
    assert second.get_submodule("1").also[0] is weight
