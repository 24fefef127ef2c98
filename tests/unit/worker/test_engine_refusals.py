import pytest
import torch
from torch import Tensor, nn

from tests.support import toys
from tests.support.driver import drive
from tests.support.fleet import NO_STEP, Fleet
from varuna_runtime.partition import CutPoint
from varuna_runtime.spec.errors import InvalidInput, ModelRefused, PeerLost, StepDiverged
from varuna_runtime.spec.job import Exactness
from varuna_runtime.worker.engine import RankEngine
from varuna_runtime.worker.link.memory import Deadlock, MemoryNetwork
from varuna_runtime.worker.signals import Progressed, StepDone, Waiting


class Counting(nn.Module):
    """Keeps a moving average in a buffer, as quantisers do."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, values: Tensor) -> Tensor:
        self.seen += values.detach().mean()
        return values


class Renewing(Counting):
    def forward(self, values: Tensor) -> Tensor:
        self.seen = values.detach().mean()
        return values


@pytest.mark.parametrize("module", [Counting, Renewing])
def test_a_buffer_changed_in_forward_is_refused_by_name(module: type[nn.Module]) -> None:
    fleet = Fleet(toys.mlp_training(model=lambda: nn.Sequential(nn.Linear(toys.WIDTH, 3), module())), "2x1")
    with pytest.raises(ModelRefused, match=r"1\.seen"):
        fleet.train(1)


def test_statistical_exactness_lets_a_forward_change_its_buffers() -> None:
    training = toys.mlp_training(model=lambda: nn.Sequential(nn.Linear(toys.WIDTH, 3), Counting()))
    done = Fleet(training, "2x1", exactness=Exactness.STATISTICAL).train(1)
    assert done.tensors["buffer:1.seen"] != 0


def test_synchronised_batch_norm_is_refused() -> None:
    training = toys.mlp_training(model=lambda: nn.Sequential(nn.Linear(toys.WIDTH, 3), nn.SyncBatchNorm(3)))
    with pytest.raises(ModelRefused, match="SyncBatchNorm"):
        Fleet(training, "1x1")


def test_a_segment_that_returns_no_tensors_is_refused() -> None:
    class Wrong(nn.Module):
        def forward(self, values: Tensor) -> dict[str, Tensor]:
            return {"values": values}

    training = toys.mlp_training(model=lambda: nn.Sequential(Wrong(), nn.Linear(toys.WIDTH, 3)))
    with pytest.raises(ModelRefused, match="as dict; only tensors"):
        Fleet(training, "1x1").train(1)


def test_a_loss_that_is_no_scalar_is_refused() -> None:
    training = toys.mlp_training(loss=lambda output, batch: output)
    with pytest.raises(ModelRefused, match="the loss returned"):
        Fleet(training, "1x1").train(1)


def test_a_complex_loss_is_refused() -> None:
    training = toys.mlp_training(loss=lambda output, batch: (output * 1j).sum())
    with pytest.raises(ModelRefused, match="complex"):
        Fleet(training, "1x1").train(1)


def test_an_optimizer_with_foreign_parameters_is_refused() -> None:
    training = toys.mlp_training(optimizer=lambda named: torch.optim.SGD([nn.Parameter(torch.ones(1))]))
    with pytest.raises(InvalidInput, match="was not given"):
        Fleet(training, "1x1")


def test_a_loss_that_trains_nothing_is_refused() -> None:
    training = toys.mlp_training(loss=lambda output, batch: toys.squared_error(output.detach(), batch))
    with pytest.raises(ModelRefused, match="does not depend on any trainable parameter"):
        Fleet(training, "2x1").train(1)


def test_a_micro_batch_without_weight_may_have_a_constant_loss() -> None:
    def loss(output: Tensor, batch: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        if len(output) < 2:  # the ragged last micro-batch
            return torch.zeros(()), torch.zeros(())
        return output.square().sum(), torch.tensor(float(len(output)))

    assert Fleet(toys.mlp_training(loss=loss), "2x1").train(1).steps[0].record.weight == 10.0


def test_a_weight_that_is_no_number_is_refused() -> None:
    training = toys.mlp_training(loss=lambda output, batch: (output.sum(), "many"))
    with pytest.raises(ModelRefused, match="the loss returned"):
        Fleet(training, "1x1").train(1)


def test_a_loss_that_is_not_finite_is_not_applied_even_with_finite_gradients() -> None:
    training = toys.mlp_training(loss=lambda output, batch: output.sum() + float("nan"))
    with pytest.raises(StepDiverged, match="step 0: the loss is nan"):
        Fleet(training, "1x1").train(1)


class Masked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(toys.WIDTH, 4), nn.Linear(4, 3)
        self.cut = CutPoint()

    def forward(self, values: Tensor, mask: Tensor | None = None) -> Tensor:
        values = self.cut(self.first(values))
        return self.last(values if mask is None else values * mask)


def test_an_input_for_an_argument_with_a_default_is_refused_with_advice() -> None:
    training = toys.mlp_training(model=Masked, inputs=lambda batch: (batch[0], torch.ones(())))
    with pytest.raises(ModelRefused, match="keeps the defaults of its arguments"):
        Fleet(training, "1x1").train(1)


class ChangesInput(nn.Module):
    def forward(self, values: Tensor) -> Tensor:
        values += 1
        return values


class HoldsItself(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(toys.WIDTH))
        self.apply_scale = lambda values: values * self.scale

    def forward(self, values: Tensor) -> Tensor:
        return self.apply_scale(values)


@pytest.mark.parametrize(
    ("module", "message"),
    [(ChangesInput, r"write y = x \+ 1 for x \+= 1"), (HoldsItself, "use a method instead")],
)
def test_a_forward_that_cannot_run_here_says_what_to_write_instead(
    module: type[nn.Module], message: str
) -> None:
    training = toys.mlp_training(
        model=lambda: [nn.Linear(toys.WIDTH, toys.WIDTH), module(), nn.Linear(toys.WIDTH, 3)]
    )
    with pytest.raises(ModelRefused, match=message):
        Fleet(training, "1x1").train(1)


class OwnRandom(toys.Rows):
    def __init__(self) -> None:
        rows = torch.Generator()
        super().__init__(lambda _: (torch.randn(toys.WIDTH, generator=rows), torch.zeros(3)), 23)


@pytest.mark.parametrize("layout", ["1x1", "2x1", "1x2"])
def test_a_data_set_with_a_generator_of_its_own_is_refused_in_the_first_step(layout: str) -> None:
    with pytest.raises(ModelRefused, match="read twice is not the same"):
        Fleet(toys.mlp_training(dataset=OwnRandom()), layout).train(1)


def test_statistical_exactness_takes_any_data_set() -> None:
    fleet = Fleet(toys.mlp_training(dataset=OwnRandom()), "1x2", exactness=Exactness.STATISTICAL)
    assert fleet.train(1).trainer.step == 1


class Failing:
    """An engine whose next step is expected to diverge."""

    def __init__(self, engine: RankEngine) -> None:
        self.engine = engine
        self.error = ""

    def advance(self) -> Progressed | Waiting | StepDone:
        try:
            return self.engine.advance()
        except StepDiverged as err:
            self.error = str(err)
            return NO_STEP


def test_gradients_that_are_not_finite_stop_every_rank_before_the_step_is_applied() -> None:
    training = toys.mlp_training(loss=lambda output, batch: output.sum() * float("inf"))
    fleet = Fleet(training, "2x2")
    before = fleet.snapshot()
    ranks = [Failing(engine) for engine in fleet.engines]
    drive(fleet.network, ranks, seed=0)
    assert all(rank.error.startswith("step 0: the gradients are not finite") for rank in ranks)
    after = fleet.snapshot()
    assert after.trainer == before.trainer
    assert all(tensor.equal(before.tensors[name]) for name, tensor in after.tensors.items())


def test_a_step_without_weight_is_an_error_that_names_it() -> None:
    training = toys.mlp_training(loss=lambda output, batch: (output.sum(), torch.zeros(())))
    with pytest.raises(StepDiverged, match="step 0: the loss weights sum to 0"):
        Fleet(training, "1x2").train(1)


@pytest.mark.parametrize("lost", range(4))
def test_a_lost_rank_is_reported_by_those_who_need_it(lost: int) -> None:
    fleet = Fleet(toys.tied_training(), "2x2")
    fleet.network.lose(lost, "killed")
    others = [engine for rank, engine in enumerate(fleet.engines) if rank != lost]
    with pytest.raises(PeerLost, match=f"rank {lost} is gone: killed"):
        drive(fleet.network, others, seed=0)


def test_a_deadlock_names_what_each_rank_waits_for() -> None:
    class Stuck:
        def advance(self) -> Waiting:
            return Waiting("a letter")

    with pytest.raises(Deadlock, match="rank 0 waits for a letter; rank 1 waits for a letter"):
        drive(MemoryNetwork(2), [Stuck(), Stuck()], seed=0)
