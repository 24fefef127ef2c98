"""Initial values: a function of (seed, name) and the construction's code, one tensor at a time."""

import copy
import random
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import torch
from torch import Tensor, nn

from varuna_runtime.partition import cut

CPU = torch.device("cpu")


def held(setup: Callable[[nn.Module], object]) -> dict[str, Tensor]:
    """Return the initial state of a module that `setup` fills."""

    def build() -> nn.Module:
        module = nn.Module()
        setup(module)
        return module

    return cut(build).initial_state(seed=3)


def values(make: Callable[[], Tensor]) -> Tensor:
    """Return the initial values of a buffer that `make` gives."""
    return held(lambda module: module.register_buffer("value", make()))["value"]


def five_layers() -> nn.Module:
    return nn.Sequential(*(nn.Linear(7, 7) for _ in range(4)), nn.LayerNorm(7))


def test_values_do_not_depend_on_which_segments_are_asked_in_which_order():
    forward = cut(five_layers)
    whole = forward.initial_state(seed=1)
    backward = cut(five_layers)
    for index in (4, 2, 0, 2):
        segment = backward.materialise(index, seed=1, device=CPU)
        for name, tensor in segment.state_dict().items():
            assert torch.equal(tensor, whole[name]), name


def test_values_depend_on_seed_and_name_only():
    model = cut(five_layers)
    one, other = model.initial_state(seed=1), model.initial_state(seed=2)
    assert not torch.equal(one["0.weight"], other["0.weight"])
    assert not torch.equal(one["0.weight"], one["1.weight"])
    longer = cut(lambda: nn.Sequential(nn.Linear(7, 7), nn.Tanh(), nn.Linear(3, 3))).initial_state(seed=1)
    assert torch.equal(one["0.weight"], longer["0.weight"])


def test_values_have_the_distribution_the_construction_asked_for():
    weight = cut(lambda: nn.Linear(400, 300)).initial_state(seed=0)["weight"]
    assert weight.abs().max() <= 400**-0.5
    assert weight.std().item() == pytest.approx((1 / 3) ** 0.5 * 400**-0.5, rel=0.02)


def test_global_random_states_neither_matter_nor_move():
    torch.manual_seed(5)
    first = cut(five_layers).initial_state(seed=1)
    torch.manual_seed(6)
    random.seed(6)
    np.random.seed(6)
    before = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    second = cut(five_layers).initial_state(seed=1)
    after = (torch.get_rng_state(), random.getstate(), np.random.get_state()[1].tolist())
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert torch.equal(before[0], after[0])
    assert before[1:] == after[1:]


def test_numbers_the_construction_draws_itself_are_the_same_in_every_process():
    def build() -> nn.Module:
        module = nn.Linear(2, 2)
        module.width = random.random()
        module.noise = np.random.rand()
        return module

    random.seed(1)
    one = cut(build).meta_segment(0)
    random.seed(2)
    np.random.seed(2)
    other = cut(build).meta_segment(0)
    assert (one.width, one.noise) == (other.width, other.noise)


@pytest.mark.parametrize(
    ("make", "wanted"),
    [
        pytest.param(lambda: torch.tril(torch.ones(3, 3)), torch.tril(torch.ones(3, 3)), id="causal mask"),
        pytest.param(lambda: torch.arange(5), torch.arange(5), id="arange"),
        pytest.param(lambda: torch.tensor([1.5, 2.0]), torch.tensor([1.5, 2.0]), id="python numbers"),
        pytest.param(lambda: torch.as_tensor([1, 2]), torch.tensor([1, 2]), id="as_tensor"),
        pytest.param(lambda: torch.from_numpy(np.arange(3.0)), torch.arange(3.0).double(), id="numpy"),
        pytest.param(lambda: torch.Tensor([4.0, 5.0]), torch.tensor([4.0, 5.0]), id="legacy numbers"),
        pytest.param(lambda: torch.Tensor(2, 2).fill_(3), torch.full((2, 2), 3.0), id="legacy sizes"),
        pytest.param(lambda: torch.empty(4), torch.zeros(4), id="never filled"),
        pytest.param(lambda: torch.ones(3).half(), torch.ones(3).half(), id="cast"),
        pytest.param(lambda: torch.ones(3).to("cpu", torch.float64), torch.ones(3).double(), id="moved"),
        pytest.param(lambda: torch.arange(6.0).view(2, 3).t(), torch.arange(6.0).view(2, 3).t(), id="view"),
        pytest.param(lambda: 2 * torch.ones(2) + torch.tensor([1, 2]), torch.tensor([3.0, 4.0]), id="mixed"),
        pytest.param(
            lambda: torch.tensor(torch.linspace(0, 1, 3).tolist()), torch.tensor([0, 0.5, 1]), id="tolist"
        ),
        pytest.param(
            lambda: torch.full((2,), torch.ones(3).sum().item()), torch.tensor([3.0, 3.0]), id="item"
        ),
        pytest.param(
            lambda: torch.from_numpy(torch.ones(2).numpy() + 1), torch.full((2,), 2.0), id="to numpy"
        ),
        pytest.param(lambda: torch.arange(4)[torch.arange(4) > 1], torch.tensor([2, 3]), id="boolean index"),
        pytest.param(lambda: copy.deepcopy(torch.tensor([1.0])), torch.tensor([1.0]), id="copied numbers"),
        pytest.param(lambda: copy.deepcopy(torch.ones(2)), torch.ones(2), id="copied tensor"),
        pytest.param(lambda: torch.ones(2, device="cpu") * 2, torch.full((2,), 2.0), id="on the cpu by name"),
        pytest.param(
            lambda: torch.tensor(0.5).repeat(2) + torch.ones(2), torch.full((2,), 1.5), id="real and meta"
        ),
        pytest.param(
            lambda: torch.cat([torch.zeros(1), torch.ones(1)]), torch.tensor([0.0, 1.0]), id="list of tensors"
        ),
        pytest.param(
            lambda: torch.zeros(2).copy_(torch.tensor([1.0, 2.0])), torch.tensor([1.0, 2.0]), id="filled"
        ),
        pytest.param(lambda: torch.sin(torch.arange(4.0)), torch.sin(torch.arange(4.0)), id="arithmetic"),
    ],
)
def test_constants_are_replayed(make: Callable[[], Tensor], wanted: Tensor):
    found = values(make)
    assert found.dtype == wanted.dtype
    assert torch.equal(found, wanted)


def test_an_expanded_buffer_gets_memory_for_every_element():
    def make() -> Tensor:
        return torch.arange(4.0)[:2].expand(2, 2)

    found = values(make)
    found[0, 0] = 7.0
    assert found.tolist() == [[7.0, 1.0], [0.0, 1.0]]


def test_item_assignment_is_replayed():
    def make() -> Tensor:
        table = torch.zeros(3, 2)
        table[1] = 5.0
        table[:, 1] += torch.arange(3)
        return table

    assert values(make).tolist() == [[0, 0], [5, 6], [0, 2]]


def test_a_padding_row_stays_zero():
    weight = cut(lambda: nn.Embedding(4, 3, padding_idx=2)).initial_state(seed=0)["weight"]
    assert weight[2].tolist() == [0, 0, 0]
    assert weight[1].abs().sum() > 0


@pytest.mark.parametrize(
    "fill",
    [
        nn.init.kaiming_normal_,
        nn.init.xavier_uniform_,
        nn.init.trunc_normal_,
        nn.init.orthogonal_,
        nn.init.eye_,
        lambda w: nn.init.sparse_(w, 0.5),
    ],
)
def test_init_functions_that_skip_the_meta_device_are_replayed(fill: Callable[[Tensor], Tensor]):
    weight = held(lambda module: module.register_parameter("w", nn.Parameter(fill(torch.empty(6, 6)))))["w"]
    assert weight.abs().sum() > 0


def test_orthogonal_values_are_orthogonal():
    weight = held(lambda m: m.register_parameter("w", nn.Parameter(nn.init.orthogonal_(torch.empty(5, 5)))))[
        "w"
    ]
    assert torch.allclose(weight @ weight.t(), torch.eye(5), atol=1e-5)


def test_a_later_init_function_wins():
    def init(module: nn.Module) -> None:
        if isinstance(module, nn.Linear):
            nn.init.normal_(module.weight, std=0.02)
            with torch.no_grad():
                module.weight.mul_(0).add_(7)
            nn.init.zeros_(module.bias)

    state = cut(lambda: nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)).apply(init)).initial_state(seed=0)
    assert state["1.weight"].unique().tolist() == [7.0]
    assert state["1.bias"].tolist() == [0, 0, 0]


def test_a_copied_tensor_equals_its_original_in_every_segment():
    def build() -> nn.Module:
        one, other = nn.Linear(3, 3), nn.Linear(3, 3)
        other.load_state_dict(one.state_dict())
        return nn.Sequential(one, copy.deepcopy(one), other)

    state = cut(build).initial_state(seed=0)
    for name in ("weight", "bias"):
        assert torch.equal(state[f"0.{name}"], state[f"1.{name}"])
        assert torch.equal(state[f"0.{name}"], state[f"2.{name}"])


def test_layers_copied_from_a_template_outside_the_model_are_equal():
    def build() -> nn.Module:
        template = nn.Linear(3, 3)
        return nn.Sequential(copy.deepcopy(template), copy.deepcopy(template))

    state = cut(build).initial_state(seed=0)
    assert torch.equal(state["0.weight"], state["1.weight"])
    assert state["0.weight"].abs().sum() > 0


def test_slices_of_one_random_tensor_fit_together():
    def build() -> nn.Module:
        both = torch.randn(4, 2)
        module = nn.Module()
        module.low, module.high = nn.Parameter(both[:2]), nn.Parameter(both[2:])
        module.register_buffer("sum", both.sum(0))
        return module

    state = cut(build).initial_state(seed=0)
    assert torch.equal(torch.cat([state["low"], state["high"]]).sum(0), state["sum"])


def test_a_generator_given_by_the_construction_is_replaced_by_the_key():
    def build() -> nn.Module:
        generator = torch.Generator().manual_seed(1)
        module = nn.Module()
        for name in ("a", "b"):
            weight = torch.empty(3)
            module.register_parameter(name, nn.Parameter(nn.init.normal_(weight, generator=generator)))
        return module

    one, other = cut(build).initial_state(seed=0), cut(build).initial_state(seed=0)
    assert torch.equal(one["b"], other["b"])
    assert not torch.equal(one["a"], one["b"])


def test_parametrised_and_recurrent_modules_are_built():
    state = cut(
        lambda: nn.ModuleList(
            [nn.utils.parametrizations.weight_norm(nn.Linear(3, 2)), nn.GRU(2, 2), nn.BatchNorm1d(2)]
        )
    ).initial_state(seed=0)
    weight = state["0.parametrizations.weight.original1"]
    assert torch.allclose(state["0.parametrizations.weight.original0"].flatten(), weight.norm(dim=1))
    assert state["2.running_var"].tolist() == [1.0, 1.0]


def test_default_dtype_of_the_construction_is_kept():
    def build() -> nn.Module:
        previous = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        try:
            return nn.Linear(2, 2)
        finally:
            torch.set_default_dtype(previous)

    assert cut(build).initial_state(seed=0)["weight"].dtype == torch.float64


def test_plain_attributes_are_made_real_too():
    def build() -> nn.Module:
        module = nn.Linear(2, 2)
        module.scale = torch.full((2,), 2.0)
        module.tables = {"a": [torch.arange(2)]}
        module.name = "head"
        return module

    module = cut(build).materialise(0, seed=0, device=CPU)
    assert module.scale.tolist() == [2.0, 2.0]
    assert module.tables["a"][0].tolist() == [0, 1]
    assert module.name == "head"


def test_a_materialised_segment_shares_nothing_with_the_next_one():
    model = cut(lambda: nn.Linear(2, 2))
    one = model.materialise(0, seed=0, device=CPU)
    with torch.no_grad():
        one.weight.zero_()
    assert model.materialise(0, seed=0, device=CPU).weight.abs().sum() > 0
    assert model.meta_segment(0).weight.is_meta


def test_non_persistent_buffers_are_made_real_and_not_recorded():
    def build() -> nn.Module:
        module = nn.Linear(2, 2)
        module.register_buffer("rotary", torch.ones(2), persistent=False)
        return module

    model = cut(build)
    assert model.materialise(0, seed=0, device=CPU).rotary.tolist() == [1.0, 1.0]
    assert [tensor.name for tensor in model.record_segments[0].tensors] == ["weight", "bias"]


def test_frozen_parameters_and_their_attributes_are_kept():
    def build() -> nn.Module:
        module = nn.Linear(2, 2)
        module.weight.requires_grad_(False)
        module.bias.no_decay = True
        return module

    module = cut(build).materialise(0, seed=0, device=CPU)
    assert not module.weight.requires_grad
    assert module.bias.requires_grad
    assert module.bias.no_decay


def test_a_model_built_for_an_accelerator_needs_none_and_starts_none():
    def build() -> nn.Module:
        model = nn.Sequential(nn.Linear(2, 2, device="cuda"), nn.BatchNorm1d(2))
        model.register_buffer("table", torch.tensor([1.0, 2.0], device="cuda"))
        model.register_buffer("noise", torch.randn(2, device=torch.device("cuda", 1)))
        return model.to("cuda").cuda()

    state = cut(build).initial_state(seed=0)
    assert not torch.cuda.is_initialized()
    assert all(tensor.device == CPU for tensor in state.values())


def test_pretrained_values_loaded_by_the_construction_are_kept():
    pretrained = nn.Linear(3, 2)

    def build() -> nn.Module:
        model = nn.Linear(3, 2)
        model.load_state_dict(pretrained.state_dict())
        return model

    model = cut(build)
    with torch.no_grad():
        wanted = pretrained.weight.clone()
        pretrained.weight.zero_()
    assert torch.equal(model.initial_state(seed=0)["weight"], wanted)


@pytest.mark.parametrize("kind", ["torch", "safetensors"])
def test_a_file_read_by_the_construction_fills_the_model(kind: str, tmp_path: Path):
    saved = nn.Linear(3, 2).state_dict()
    file = tmp_path / "weights"
    if kind == "torch":
        torch.save(saved, file)
    else:
        safetensors.torch.save_file(saved, file)

    def build() -> nn.Module:
        model = nn.Linear(3, 2)
        model.load_state_dict(torch.load(file) if kind == "torch" else safetensors.torch.load_file(file))
        return model

    state = cut(build).initial_state(seed=0)
    assert all(torch.equal(state[name], saved[name]) for name in saved)


def test_recurrent_modules_run_with_the_values_they_got():
    module = cut(lambda: nn.GRU(2, 2)).materialise(0, seed=0, device=CPU)
    assert module._flat_weights[0] is module.weight_ih_l0
    assert module(torch.ones(3, 1, 2))[0].shape == (3, 1, 2)


def test_a_model_built_beforehand_is_copied():
    built = nn.Linear(2, 2)
    copied = cut(lambda: built).materialise(0, seed=0, device=CPU)
    assert torch.equal(copied.weight, built.weight)
    assert copied.weight is not built.weight
