"""The arguments of `train`, and what the job file makes of them."""

import subprocess
import sys
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import IterableDataset

import varuna_runtime as varuna
from varuna_runtime.spec.errors import InvalidInput, ModelRefused
from varuna_runtime.spec.job import Exactness, JobSpec, Nodes, Precision
from varuna_runtime.spec.layout import BatchShape
from varuna_runtime.worker.hosts import Result, hosted_by
from varuna_runtime.worker.training import ResolvedTraining, Training, resolve


class Numbers:
    def __len__(self) -> int:
        return 10

    def __getitem__(self, index: int) -> int:
        return index


class Stream:
    def open(self, cursor: Any) -> Any:
        return iter([(0, 1)])


class Endless(IterableDataset[int]):
    def __iter__(self) -> Any:
        return iter(range(3))


RESULT = Result(step=1, losses=(0.5,), evaluations=(), weights_sha256="", state={})


class RecordingHost:
    def __init__(self) -> None:
        self.seen: list[Training] = []

    def run(self, training: Training) -> Result:
        self.seen.append(training)
        return RESULT


def given(**changes: Any) -> dict[str, Any]:
    arguments: dict[str, Any] = {
        "model": lambda: nn.Linear(1, 1),
        "loss": lambda output, batch: output.sum(),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        "dataset": Numbers(),
        "batch_size": 4,
        "steps": 3,
    }
    return arguments | changes


def resolved(spec: JobSpec | None = None, **changes: Any) -> ResolvedTraining:
    return resolve(Training(**given(**changes)), spec)


def job(**changes: Any) -> JobSpec:
    return JobSpec(**({"name": "j", "entrypoint": "train.py", "batch_size": 8} | changes))


def test_train_hands_the_training_to_the_host_and_returns_its_result():
    host = RecordingHost()
    with hosted_by(host):
        assert varuna.train(**given(clip_grad_norm=1)) is RESULT
    assert host.seen[0].clip_grad_norm == 1
    assert host.seen[0].shuffle


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": nn.Linear(1, 1)}, "model: seen a built model, wanted the function that builds it"),
        ({"model": [nn.Linear(1, 1)]}, "model: seen a built model"),
        ({"model": None}, "model: seen None, wanted a function"),
        ({"optimizer": torch.optim.SGD([nn.Parameter(torch.ones(1))])}, "optimizer: seen a built optimizer"),
        ({"loss": 3}, "loss: seen 3, wanted a function"),
        ({"collate": "pad"}, "collate: seen 'pad', wanted a function"),
        ({"batch_size": 0}, "batch_size: seen 0, wanted a whole number >= 1"),
        ({"batch_size": None}, "batch_size: seen None"),
        ({"batch_size": 2.0}, r"batch_size: seen 2\.0"),
        ({"steps": True}, "steps: seen True"),
        ({"micro_batch_size": -1}, "micro_batch_size: seen -1"),
        ({"seed": -1}, "seed: seen -1"),
        ({"seed": 2**63}, "seed: seen 9223372036854775808"),
        ({"clip_grad_norm": 0}, "clip_grad_norm: seen 0, wanted a number > 0"),
        ({"clip_grad_norm": float("nan")}, "clip_grad_norm: seen nan"),
        ({"shuffle": 1}, "shuffle: seen 1, wanted True or False"),
        ({"dataset": range}, "dataset: seen the class range"),
        ({"dataset": 5}, "dataset: seen int, wanted __len__ and __getitem__"),
        ({"dataset": []}, "dataset: it has no samples"),
    ],
)
def test_a_wrong_argument_is_refused_by_name(changes: dict[str, Any], message: str):
    host = RecordingHost()
    with hosted_by(host), pytest.raises(InvalidInput, match=message):
        varuna.train(**given(**changes))
    assert host.seen == []


def test_a_bare_iterable_data_set_is_refused():
    with hosted_by(RecordingHost()), pytest.raises(ModelRefused, match="open\\(cursor\\)"):
        varuna.train(**given(dataset=Endless()))


def test_alone_the_script_decides():
    found = resolved(seed=7, micro_batch_size=2, clip_grad_norm=0.5)
    assert found.batch == BatchShape(batch_size=4, micro_batch_size=2, virtual_replicas=1)
    assert (found.seed, found.num_steps, found.total_samples, found.num_samples) == (7, 3, None, 10)
    assert (found.precision, found.exactness) == (Precision.FP32, Exactness.BITWISE)
    assert found.clip_grad_norm == 0.5


def test_alone_without_a_size_a_step_is_one_micro_batch():
    assert resolved().batch == BatchShape(batch_size=4, micro_batch_size=4, virtual_replicas=1)


def test_the_job_file_wins():
    spec = job(
        seed=9,
        steps=5,
        micro_batch_size=2,
        virtual_replicas=2,
        clip_grad_norm=2.0,
        precision=Precision.BF16,
        exactness=Exactness.STATISTICAL,
        threads_per_worker=3,
    )
    found = resolved(spec, seed=7, micro_batch_size=1, clip_grad_norm=0.5)
    assert found.batch == BatchShape(batch_size=8, micro_batch_size=2, virtual_replicas=2)
    assert (found.seed, found.num_steps, found.threads, found.clip_grad_norm) == (9, 5, 3, 2.0)
    assert (found.precision, found.exactness) == (Precision.BF16, Exactness.STATISTICAL)


def test_what_the_job_file_leaves_open_is_the_script_s():
    found = resolved(job(), clip_grad_norm=0.5)
    assert (found.num_steps, found.clip_grad_norm) == (3, 0.5)


def test_an_automatic_micro_batch_is_left_to_the_first_plan():
    found = resolved(job(), micro_batch_size=2)
    assert found.batch is None
    assert found.batch_alone == BatchShape(batch_size=8, micro_batch_size=8, virtual_replicas=1)


@pytest.mark.parametrize(
    ("batch", "micro", "nodes", "wanted"),
    [(64, 1, 4, 16), (64, 1, 3, 16), (64, 8, 4, 8), (10, 1, 16, 8), (3, 1, 1, 2)],
)
def test_automatic_virtual_replicas_are_a_power_of_two_from_the_largest_pool(
    batch: int, micro: int, nodes: int, wanted: int
):
    found = resolved(job(batch_size=batch, micro_batch_size=micro, nodes=Nodes(max=nodes)))
    assert found.batch is not None
    assert found.batch.virtual_replicas == wanted


def test_epochs_count_samples_and_only_the_last_step_is_short():
    found = resolved(steps=None, epochs=2)
    assert (found.num_steps, found.total_samples) == (5, 20)
    assert resolved(job(epochs=1)).num_steps == 2


@pytest.mark.parametrize(
    ("changes", "spec", "message"),
    [
        ({"steps": None}, None, "seen neither, wanted one of steps and epochs"),
        ({"epochs": 1}, None, "seen both"),
        ({"steps": None, "epochs": 1, "dataset": Stream()}, None, "a stream has no length"),
        ({"micro_batch_size": 5}, None, "micro_batch_size: seen 5, wanted at most the batch, 4"),
        (
            {},
            job(micro_batch_size=4, virtual_replicas=3),
            "virtual_replicas: seen 3, wanted at most a step's 2",
        ),
    ],
)
def test_numbers_that_do_not_fit_together_are_refused(
    changes: dict[str, Any], spec: JobSpec | None, message: str
):
    with pytest.raises(InvalidInput, match=message):
        resolved(spec, **changes)


X, Y = torch.ones(2), torch.zeros(2)


@pytest.mark.parametrize(
    ("batch", "inputs", "wanted"),
    [
        ((X, Y), None, (X,)),
        ([X, Y], None, (X,)),
        (X, None, (X,)),
        (((X, Y), Y), None, (X, Y)),
        ((X, Y, X), None, (X, Y, X)),
        ({"ids": X}, lambda batch: batch["ids"], (X,)),
        ({"ids": X, "mask": Y}, lambda batch: (batch["ids"], batch["mask"]), (X, Y)),
    ],
)
def test_model_inputs_come_from_the_batch(batch: Any, inputs: Any, wanted: tuple[Tensor, ...]):
    found = Training(**given(inputs=inputs)).model_inputs(batch)
    assert [id(value) for value in found] == [id(value) for value in wanted]


def test_a_batch_without_tensors_asks_for_inputs():
    with pytest.raises(InvalidInput, match=r"seen dict.*pass inputs="):
        Training(**given()).model_inputs({"ids": X})


def test_importing_the_package_does_not_import_torch():
    code = "import sys, varuna_runtime; print('torch' in sys.modules, 'numpy' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]


def test_an_unknown_name_of_the_package_is_an_attribute_error():
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        varuna.trian  # noqa: B018
