from collections.abc import Callable
from itertools import count
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.planning import job, nodes, request
from tests.support.toys import batch_norm_training, mlp_training, tied_training
from varuna_manager.planner import plan
from varuna_runtime.partition import cut
from varuna_runtime.spec.layout import Plan
from varuna_runtime.spec.profile import Profile
from varuna_runtime.worker.profiling import measure
from varuna_runtime.worker.training import Training

torch.set_num_threads(1)

CPU = torch.device("cpu")


def ticking() -> Callable[[], float]:
    """A clock that moves one second at each look."""
    ticks = count()
    return lambda: float(next(ticks))


def measured(training: Training, **fields: Any) -> Profile:
    spec = job(**{"batch_size": 11, "micro_batch_size": 4, **fields})
    return measure(training, cut(training.model), spec, CPU, clock=ticking(), budget_s=1e9)


def test_every_segment_has_times_and_the_bytes_of_its_tensors() -> None:
    found = measured(mlp_training())
    (at,) = found.by_micro_batch
    assert at.micro_batch_size == 4
    assert at.input_bytes == 4 * 8 * 4
    assert [cost.output_bytes for cost in at.segments] == [4 * 16 * 4] * 4 + [0]
    assert [cost.param_bytes for cost in at.segments] == [
        (8 * 16 + 16) * 4,
        0,
        (16 * 16 + 16) * 4,
        32 * 4,
        (16 * 3 + 3) * 4,
    ]
    assert all(cost.forward_s == cost.backward_s == 1.0 for cost in at.segments)


def test_optimizer_bytes_are_those_of_the_jobs_own_optimizer() -> None:
    for cost in measured(mlp_training()).by_micro_batch[0].segments:
        steps = 2 * 4 if cost.param_bytes else 0  # AdamW counts steps per parameter
        assert cost.optimizer_bytes == 2 * cost.param_bytes + steps


def test_the_time_of_an_optimizer_step_is_per_parameter_byte() -> None:
    found = measured(mlp_training())
    total = sum(cost.param_bytes for cost in found.by_micro_batch[0].segments)
    assert found.optimizer_step_s_per_byte == 5.0 / total


def test_recompute_and_split_backwards_have_times_of_their_own() -> None:
    for cost in measured(mlp_training()).by_micro_batch[0].segments:
        assert cost.recompute_s == cost.input_s == cost.weight_s == 1.0


def test_an_interrupted_op_does_not_change_its_time() -> None:
    now_s, looks = 0.0, count()

    def interrupted() -> float:
        nonlocal now_s
        now_s += 1.0 + 99.0 * (next(looks) % 13 == 12)
        return now_s

    training, spec = mlp_training(), job(batch_size=11, micro_batch_size=4)
    found = measure(training, cut(training.model), spec, CPU, clock=interrupted, budget_s=1e9)
    assert all(c.forward_s == c.backward_s == c.recompute_s == 1.0 for c in found.by_micro_batch[0].segments)
    assert found.compute_factor[0] == found.compute_factor[10] == 1.0


class Squares(nn.Module):
    def forward(self, values: torch.Tensor) -> torch.Tensor:
        return (values * values) * 2.0


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(8, 8)

    def forward(self, values: torch.Tensor) -> torch.Tensor:
        hidden = torch.sin(self.inner(values))
        return hidden * hidden


def test_saved_bytes_count_each_storage_once_without_parameters_and_inputs() -> None:
    training = mlp_training(model=lambda: nn.Sequential(nn.Linear(8, 8), Twice(), Squares(), nn.Linear(8, 3)))
    linear, twice, squares, _ = measured(training).by_micro_batch[0].segments
    row = 4 * 8 * 4
    assert linear.saved_bytes == row  # its output only
    assert twice.saved_bytes == 3 * row  # input of sin, hidden once, its output
    assert squares.saved_bytes == row  # its input is the one before's output


def test_workspace_is_what_an_op_takes_beyond_what_a_forward_keeps() -> None:
    training = mlp_training(
        model=lambda: nn.Sequential(nn.Linear(8, 8), nn.Linear(8, 8), Squares(), nn.Linear(8, 3))
    )
    first, second, squares, _ = measured(training).by_micro_batch[0].segments
    row, weights = 4 * 8 * 4, (8 * 8 + 8) * 4
    assert first.workspace_bytes == weights  # the gradients of its parameters
    assert second.workspace_bytes == weights + row  # and of its input
    assert squares.workspace_bytes >= row


def test_auto_measures_powers_of_two_up_to_the_batch() -> None:
    found = measured(mlp_training(), micro_batch_size="auto")
    assert [at.micro_batch_size for at in found.by_micro_batch] == [1, 2, 4, 8]
    assert [at.segments[0].output_bytes for at in found.by_micro_batch] == [64 * n for n in (1, 2, 4, 8)]


def test_a_small_time_budget_leaves_the_larger_sizes_out() -> None:
    training = mlp_training()
    spec = job(batch_size=11, micro_batch_size="auto")
    found = measure(training, cut(training.model), spec, CPU, clock=ticking(), budget_s=1.0)
    assert [at.micro_batch_size for at in found.by_micro_batch] == [1]


def test_a_size_that_does_not_fit_the_device_ends_the_measurement() -> None:
    def loss(output: torch.Tensor, batch: Any) -> torch.Tensor:
        if len(output) > 2:
            raise torch.OutOfMemoryError("as CUDA says it")
        return output.mean()

    found = measured(mlp_training(loss=loss), micro_batch_size="auto")
    assert [at.micro_batch_size for at in found.by_micro_batch] == [1, 2]
    with pytest.raises(torch.OutOfMemoryError):
        measured(mlp_training(loss=loss), micro_batch_size=4)


def test_every_segment_is_materialised_once_and_alone() -> None:
    training = mlp_training()
    model = cut(training.model)
    asked: list[int] = []

    class Recording:
        def __getattr__(self, name: str) -> Any:
            return getattr(model, name)

        def materialise(self, index: int, **options: Any) -> nn.Module:
            asked.append(index)
            return model.materialise(index, **options)

    spec = job(batch_size=11, micro_batch_size=4)
    measure(training, Recording(), spec, CPU, clock=ticking())  # type: ignore[arg-type]
    assert asked == [0, 1, 2, 3, 4]


@pytest.mark.parametrize("training", [tied_training(), batch_norm_training()], ids=["tied", "batch norm"])
def test_skip_tensors_ties_and_statistics_are_profiled(training: Training) -> None:
    found = measured(training)
    (at,) = found.by_micro_batch
    assert len(at.segments) == cut(training.model).num_segments
    assert all(cost.forward_s > 0 for cost in at.segments)


def test_one_row_is_left_out_where_a_batch_norm_wants_more() -> None:
    found = measured(batch_norm_training(), micro_batch_size="auto")
    assert [at.micro_batch_size for at in found.by_micro_batch] == [2, 4, 8]


def test_the_profile_is_enough_to_plan() -> None:
    training = mlp_training()
    spec = job(batch_size=11, micro_batch_size="auto")
    found = measured(training, micro_batch_size="auto")
    asked = request(spec, found.by_micro_batch[0].segments, nodes(3), measured=found)
    answer = plan(asked)
    assert isinstance(answer.outcome, Plan)
    assert answer.explanation is not None
    assert "links guessed" in answer.explanation.profile_source


def test_the_model_hash_is_that_of_the_recorded_structure() -> None:
    assert measured(mlp_training()).model_hash == measured(mlp_training(seed=9)).model_hash
    assert measured(mlp_training()).model_hash != measured(tied_training()).model_hash
