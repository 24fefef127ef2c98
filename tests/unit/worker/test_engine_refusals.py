import pytest
import torch
from torch import Tensor, nn

from tests.support import toys
from tests.support.driver import drive
from tests.support.fleet import NO_STEP, Fleet
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


def test_an_optimizer_with_foreign_parameters_is_refused() -> None:
    training = toys.mlp_training(optimizer=lambda named: torch.optim.SGD([nn.Parameter(torch.ones(1))]))
    with pytest.raises(InvalidInput, match="was not given"):
        Fleet(training, "1x1")


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
