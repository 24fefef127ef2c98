"""Plain modules are cut between their blocks, and the segments compute the bits of the whole."""

from collections.abc import Callable
from functools import cache

import pytest
import torch
from torch import Tensor, nn

from tests.support import plain_models as plain
from tests.support.recomposing import of_segments, of_whole, twin
from varuna_runtime.partition import ExampleInput, PartitionedModel, cut
from varuna_runtime.spec.errors import ModelRefused


def floats(*shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(sum(shape)))


def tokens(*shape: int) -> Tensor:
    return torch.randint(11, shape, generator=torch.Generator().manual_seed(sum(shape)))


# model, inputs for a number of rows, names of the segments
MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[int], tuple[Tensor, ...]], str]] = {
    "resnet": (plain.ResNet, lambda rows: (floats(rows, 3, 8, 8),), "layer1.0 layer1.1 layer2.0 layer2.1"),
    "unet": (plain.UNet, lambda rows: (floats(rows, 5, 8),), "down.0 down.1 down.2 middle up.0 up.1 up.2"),
    "translate": (
        plain.Translate,
        lambda rows: (tokens(rows, 6), tokens(rows, 4)),
        "encoder.0 encoder.1 decoder.0.own decoder.0.cross decoder.1.own decoder.1.cross",
    ),
    "frozen": (plain.Frozen, lambda rows: (floats(rows, 8),), "body.0 body.1 body.2 body.3"),
    "mixture": (
        plain.Mixture,
        lambda rows: (floats(rows, 8),),
        "gates.0 experts.0 experts.1 experts.2 gates.1 experts.0@1 experts.1@1 experts.2@1 head",
    ),
    "sized": (plain.Sized, lambda rows: (tokens(rows, 3 + rows),), "table blocks.0 blocks.1 blocks.2 head"),
}


def kinds(inputs: tuple[Tensor, ...]) -> tuple[ExampleInput, ...]:
    return tuple(
        ExampleInput(shape=tuple(t.shape), dtype=str(t.dtype).removeprefix("torch.")) for t in inputs
    )


@cache
def model_of(name: str) -> PartitionedModel:
    build, inputs, _ = MODELS[name]
    return cut(build, lambda: kinds(inputs(2)))


@pytest.mark.parametrize("name", MODELS)
def test_segments_compute_the_bits_of_the_whole_model(name: str):
    build, inputs, _ = MODELS[name]
    model, whole = model_of(name), build()
    segments = twin(model, whole)
    folded = {tie.uses[0].name for tie in model.tied if len(tie.uses) > 2}  # in an order of their own
    for rows in (2, 1, 3):
        outputs, gradients = of_whole(whole, inputs(rows), seed=rows)
        cut_outputs, cut_gradients = of_segments(segments, inputs(rows), seed=rows)
        assert all(a.equal(b) for a, b in zip(outputs, cut_outputs, strict=True))
        assert gradients.keys() == cut_gradients.keys()
        for key, gradient in gradients.items():
            other = cut_gradients[key]
            if gradient is None or other is None:
                assert gradient is other, key
            elif key in folded:
                torch.testing.assert_close(other, gradient, rtol=1e-5, atol=1e-6)
            else:
                assert other.equal(gradient), key


@pytest.mark.parametrize("name", MODELS)
def test_segments_are_the_blocks(name: str):
    model = model_of(name)
    assert model.warnings == ()
    assert " ".join(s.name for s in model.record_segments) == MODELS[name][2]


def test_names_are_those_of_the_model_and_nothing_is_lost():
    recorded = {t.name for s in model_of("frozen").record_segments for t in s.tensors}
    assert recorded == set(plain.Frozen().state_dict())
    recorded = {t.name for s in model_of("translate").record_segments for t in s.tensors}
    assert recorded == set(plain.Translate().state_dict()) - {"head.weight"}
    assert [[use.name for use in tie.uses] for tie in model_of("translate").tied] == [["table.weight"] * 3]


def test_what_follows_from_inputs_is_made_again_unless_it_is_smaller():
    """Beside the streams crosses the encoder's mask, a byte a token; the causal one is made again."""
    model, whole = model_of("translate"), plain.Translate()
    segments = twin(model, whole)
    values: tuple[Tensor, ...] = (tokens(2, 6), tokens(2, 4))
    seen = []
    for segment in segments[:-1]:
        values = segment(*values)
        seen.append([tuple(v.shape) for v in values])
    assert seen[2:] == [[(2, 1, 6), (2, 6, 8), (2, 4, 8)]] * 3


class Branching(nn.Module):
    """Fixed to eight positions, and another function from eleven tokens on."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.second = nn.Linear(64, 3)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        if y.shape[1] > 10:
            y = y * 2
        return self.second(self.first(x).reshape(x.shape[0], 64)) + y.sum(1, keepdim=True)


@pytest.mark.parametrize(
    ("x", "y", "reason"),
    [
        ((3, 8, 8), (3, 12), None),
        ((1, 8, 8), (1, 30), None),
        ((2, 9, 8), (2, 12), "input 0 dimension 1 has size 9; forward only works for 8"),
        ((2, 8, 8), (2, 7), r"forward branches on sizes: .* > 10 held, but now input 1 dimension 1 is 7"),
        ((4, 8, 8), (3, 12), "input 0 dimension 0 is 4, input 1 dimension 0 is 3"),
        ((2, 8), (2, 12), "input 0 has 2 dimensions; the first samples have 3"),
    ],
)
def test_sizes_for_which_forward_would_do_something_else_are_refused(
    x: tuple[int, ...], y: tuple[int, ...], reason: str | None
):
    segments = twin(_branching(), whole := Branching())
    if reason is None:
        wanted, _ = of_whole(whole, (floats(*x), floats(*y)), seed=1)
        found, _ = of_segments(segments, (floats(*x), floats(*y)), seed=1)
        assert found[0].equal(wanted[0])
        return
    with pytest.raises(ModelRefused, match=reason):
        of_segments(segments, (floats(*x), floats(*y)), seed=1)


@cache
def _branching() -> PartitionedModel:
    return cut(Branching, lambda: kinds((floats(2, 8, 8), floats(2, 12))))


def test_tensors_that_forward_makes_follow_the_segment_to_its_device():
    meta = torch.device("meta")
    values: tuple[Tensor, ...] = tuple(t.to(meta) for t in MODELS["sized"][1](2))
    for index in range(model_of("sized").num_segments):
        found = model_of("sized").materialise(index, seed=1, device=meta)(*values)
        values = found if isinstance(found, tuple) else (found,)
    assert [t.device for t in values] == [meta]


class Noisy(nn.Module):
    """Draws by itself in training."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(plain.Mix() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
            if self.training:
                x = x + torch.randn_like(x)
        return x


def test_draws_that_would_not_stop_in_evaluation_are_refused_there():
    model = cut(Noisy, lambda: kinds((floats(2, 8),)))
    segments = twin(model, whole := Noisy())
    (wanted, _), (found, _) = of_whole(whole, (floats(2, 8),), 1), of_segments(segments, (floats(2, 8),), 1)
    assert found[0].equal(wanted[0])
    with pytest.raises(ModelRefused, match="forward draws random numbers by itself"):
        segments[1].eval()(floats(2, 8))
    with pytest.raises(ModelRefused, match="forward draws random numbers by itself"):
        model.refuse_evaluation()


class Windows(nn.Module):
    """Pads images to whole windows, works inside each, and crops again, as Swin does; then halves them."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.Linear(4, 4) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            rows, high, wide, _ = x.shape
            padded = nn.functional.pad(x, (0, 0, 0, -wide % 3, 0, -high % 3))
            h, w = padded.shape[1] // 3, padded.shape[2] // 3
            inside = padded.view(rows, h, 3, w, 3, 4).transpose(2, 3).reshape(-1, 9, 4)
            inside = block(inside).softmax(1).view(rows, h, w, 3, 3, 4).transpose(2, 3)
            x = inside.reshape(rows, 3 * h, 3 * w, 4)[:, :high, :wide].contiguous()[:, ::2, ::2]
        return x


def test_sizes_that_no_tracer_can_follow_are_fixed_but_for_the_rows(monkeypatch: pytest.MonkeyPatch):
    """Else the tracer thinks for minutes and more."""
    monkeypatch.setattr("varuna_runtime.partition.exporting._MAX_TERMS", 30)  # the real one takes 10 s
    model = cut(Windows, lambda: kinds((floats(2, 8, 8, 4),)))
    assert (model.warnings, model.num_segments) == ((), 2)
    segments = twin(model, whole := Windows())
    images = (floats(3, 8, 8, 4),)
    (wanted, _), (found, _) = of_whole(whole, images, 1), of_segments(segments, images, 1)
    assert found[0].equal(wanted[0])
    with pytest.raises(ModelRefused, match="input 0 dimension 1 has size 10; forward only works for 8"):
        segments[0](floats(2, 10, 8, 4))


class Kept(nn.Module):
    """Tensors in plain attributes, one computed and one of numbers, and one made of numbers in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(plain.Mix() for _ in range(2))
        self.table = torch.arange(8) / 7.0
        self.numbers = torch.tensor([1.0, 2.0] * 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x * self.table + self.numbers) * torch.tensor(0.3)
        return x


def test_tensors_in_plain_attributes_and_constants_keep_their_values():
    model = cut(Kept, lambda: kinds((floats(2, 8),)))
    assert (model.warnings, model.num_segments) == ((), 2)
    whole = Kept()
    segments = [model.materialise(i, seed=3, device=torch.device("cpu")) for i in range(2)]
    whole.load_state_dict(model.initial_state(seed=3))
    (wanted, _), (found, _) = of_whole(whole, (floats(2, 8),), 1), of_segments(segments, (floats(2, 8),), 1)
    assert found[0].equal(wanted[0])
