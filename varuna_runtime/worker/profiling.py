"""Measures the segments of a job through the stage runner of the engine; holds one segment at a time.

A subprocess: `python -m varuna_runtime.worker.profiling --job JOB.json --workdir DIR --fd N ENTRY ARGS...`.
"""

import sys
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from statistics import median
from typing import Any, NoReturn

import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree

from varuna_runtime.partition import PartitionedModel
from varuna_runtime.spec.batches import micro_batch_rows
from varuna_runtime.spec.errors import InvalidInput, ModelRefused
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.layout import Stage
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.profile import LinkCost, Profile, SegmentCost, SegmentProfile
from varuna_runtime.worker.build import BuiltStage, build_stage
from varuna_runtime.worker.clock import now_s
from varuna_runtime.worker.data import SampleSource
from varuna_runtime.worker.hosts import ScriptStopped
from varuna_runtime.worker.inspection import main
from varuna_runtime.worker.partitioning import partition_of
from varuna_runtime.worker.stage import MicroBatch
from varuna_runtime.worker.training import ResolvedTraining, Training, resolve

Clock = Callable[[], float]

GUESSED_LINK = LinkCost(latency_s=1e-4, bandwidth_bps=1e10)
"""Stands for every link until one was measured: about what loopback gives on a small machine."""
LARGEST_AUTO_SIZE = 64
BUDGET_S = 20.0
REPETITIONS = 9
FEWEST_REPETITIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Boundary:
    """What enters a segment, flagged where a gradient goes back."""

    values: tuple[Tensor, ...]
    batch: Any
    rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _OptimizerCost:
    step_s: float
    state_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Profiled:
    """What one look at a script on this machine shows."""

    model: ModelRecord
    profile: Profile


class ProfileHost:
    """Takes the first `varuna.train` call, measures the model on this machine and stops the script."""

    def __init__(self, spec: JobSpec | None) -> None:
        if spec is None:
            raise InvalidInput(
                "a profile needs a job: it fixes batch size, precision and threads; give --job"
            )
        self._spec = spec
        self.answer: object | None = None

    def run(self, training: Training) -> NoReturn:
        """Measure; never returns."""
        settings = resolve(training, self._spec)
        torch.set_num_threads(settings.threads)
        partitioned = partition_of(training)
        device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        profile = measure(training, partitioned, self._spec, device)
        self.answer = Profiled(model=_record(partitioned, settings), profile=profile)
        raise ScriptStopped


def measure(
    training: Training,
    partitioned: PartitionedModel,
    spec: JobSpec,
    device: torch.device,
    *,
    clock: Clock = now_s,
    budget_s: float = BUDGET_S,
    device_kind: str = "",
    measured_on: str = "this machine",
) -> Profile:
    """Return the costs of every segment on `device`, with guessed links (`measured_on` says so).

    Runs the data set's first micro-batch at the job's micro-batch size, or, when that is auto, at powers of
    two as long as the next one is expected to end within `budget_s`. Each figure is a median after a
    warm-up. Draws from the global random state.
    """
    # What the optimizer costs as a whole; where it lives is the planner's to count.
    settings = replace(resolve(training, spec), shard_optimizer=False, offload_optimizer=False)
    probe = _Probe(
        replace(training, scheduler=None, arguments=partitioned.arguments),
        settings,
        partitioned,
        device,
        clock,
        budget_s,
    )
    started = clock()
    profiles: list[SegmentProfile] = []
    sizes = _sizes(settings)
    for size in sizes:
        if profiles and 2 * (clock() - started) > budget_s:
            break  # the next size takes about as long as all before it
        try:
            profiles.append(probe.at_size(size))
        except ModelRefused:
            if size > 1 or size == sizes[-1]:
                raise
            # One row may be too few, for a batch norm say.
        except torch.OutOfMemoryError:
            if not profiles:
                raise
            break
    return Profile(
        model_hash=_record(partitioned, settings).hash(),
        device_kind=device_kind,
        by_micro_batch=tuple(profiles),
        same_node=GUESSED_LINK,
        cross_node=GUESSED_LINK,
        optimizer_step_s_per_byte=probe.optimizer_step_s_per_byte,
        measured_on=f"{measured_on} (links guessed)",
    )


def _sizes(settings: ResolvedTraining) -> tuple[int, ...]:
    if settings.batch is not None:
        return (settings.batch.micro_batch_size,)
    most = min(settings.batch_size, LARGEST_AUTO_SIZE)
    return tuple(1 << power for power in range(most.bit_length()))


def _record(partitioned: PartitionedModel, settings: ResolvedTraining) -> ModelRecord:
    return ModelRecord(
        segments=partitioned.record_segments,
        tied=partitioned.tied,
        num_samples=settings.num_samples,
        num_steps=settings.num_steps,
    )


class _Probe:
    """Measures all segments at one size after the other."""

    def __init__(
        self,
        training: Training,
        settings: ResolvedTraining,
        model: PartitionedModel,
        device: torch.device,
        clock: Clock,
        budget_s: float,
    ) -> None:
        self._training, self._settings, self._model = training, settings, model
        self._device, self._clock = device, clock
        self._patience_s = budget_s / (4 * model.num_segments)
        self._optimizers: dict[int, _OptimizerCost] = {}
        self._param_bytes: dict[int, int] = {}

    @property
    def optimizer_step_s_per_byte(self) -> float:
        """Seconds per parameter byte over the whole model; 0 for a model without parameters."""
        num_bytes = sum(self._param_bytes.values())
        total_s = sum(cost.step_s for cost in self._optimizers.values())
        return total_s / num_bytes if num_bytes else 0.0

    def at_size(self, size: int) -> SegmentProfile:
        """Measure every segment in order, each fed with what the one before gave."""
        entering = self._first_boundary(size)
        input_bytes = _num_bytes(entering.values)
        costs: list[SegmentCost] = []
        for index in range(self._model.num_segments):
            cost, entering = self._segment(index, entering)
            costs.append(cost)
        return SegmentProfile(micro_batch_size=size, segments=tuple(costs), input_bytes=input_bytes)

    def _first_boundary(self, size: int) -> _Boundary:
        settings = self._settings
        source = SampleSource(
            self._training.dataset,
            collate=self._training.collate,
            seed=settings.seed,
            shuffle=settings.shuffle,
            batch_size=settings.batch_size,
            total_samples=settings.total_samples,
        )
        batch = pytree.tree_map_only(Tensor, lambda t: t.to(self._device), source.micro_batch(0, 0, size))
        rows = len(micro_batch_rows(source.num_samples(0), size, 0))
        return _Boundary(values=self._training.model_inputs(batch), batch=batch, rows=rows)

    def _segment(self, index: int, entering: _Boundary) -> tuple[SegmentCost, _Boundary]:
        stage = Stage(first=index, last=index + 1, recompute=False)
        built = build_stage(self._training, self._settings, self._model, stage, self._device)
        module = built.segments[0].module
        saved = _SavedBytes(module, entering.values)
        with torch.autograd.graph.saved_tensors_hooks(saved.pack, _unchanged):
            outputs = self._forward(built, entering)
        saved_bytes = saved.num_bytes(outputs)
        self._backward(built, entering, outputs)  # with the forward above, the warm-up
        forward_s, backward_s = self._times(built, entering)
        if index not in self._optimizers:
            self._param_bytes[index] = _num_bytes(module.parameters())
            self._optimizers[index] = self._optimizer(built)
        is_last = index == self._model.num_segments - 1
        cost = SegmentCost(
            forward_s=forward_s,
            backward_s=backward_s,
            output_bytes=0 if is_last else _num_bytes(outputs),
            saved_bytes=saved_bytes,
            param_bytes=self._param_bytes[index],
            optimizer_bytes=self._optimizers[index].state_bytes,
        )
        return cost, _Boundary(values=outputs, batch=entering.batch, rows=entering.rows)

    def _times(self, built: BuiltStage, entering: _Boundary) -> tuple[float, float]:
        forwards: list[float] = []
        backwards: list[float] = []
        while len(forwards) < REPETITIONS:
            started = self._now_s()
            outputs = self._forward(built, entering)
            between = self._now_s()
            self._backward(built, entering, outputs)
            forwards.append(between - started)
            backwards.append(self._now_s() - between)
            spent = sum(forwards) + sum(backwards)
            if len(forwards) >= FEWEST_REPETITIONS and spent > self._patience_s:
                break
        return median(forwards), median(backwards)

    def _forward(self, built: BuiltStage, entering: _Boundary) -> tuple[Tensor, ...]:
        built.runner.begin(1, range(1))
        return built.runner.forward(_micro(entering), entering.values, entering.batch)

    def _backward(self, built: BuiltStage, entering: _Boundary, outputs: tuple[Tensor, ...]) -> None:
        is_last = built.segments[0].index == self._model.num_segments - 1
        gradients = [torch.ones_like(t) if t.requires_grad else None for t in outputs]
        built.runner.backward(_micro(entering), None if is_last else gradients)

    def _optimizer(self, built: BuiltStage) -> _OptimizerCost:
        segment = built.segments[0]
        for _, parameter in segment.parameters:
            parameter.grad = torch.zeros_like(parameter)
        times = [self._optimizer_step_s(built) for _ in range(1 + FEWEST_REPETITIONS)]
        state = built.optimizer.tensors([name for name, _ in segment.parameters])
        return _OptimizerCost(step_s=median(times[1:]), state_bytes=_num_bytes(state.values()))

    def _optimizer_step_s(self, built: BuiltStage) -> float:
        started = self._now_s()
        built.optimizer.step(0.0)
        return self._now_s() - started

    def _now_s(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return self._clock()


class _SavedBytes:
    """Counts storages that one forward keeps until its backward, without parameters, buffers and inputs."""

    def __init__(self, module: nn.Module, inputs: Sequence[Tensor]) -> None:
        self._known = {_storage(t) for t in (*module.parameters(), *module.buffers(), *inputs)}
        self._kept: dict[int, Tensor] = {}

    def pack(self, tensor: Tensor) -> Tensor:
        self._keep(tensor)
        return tensor

    def num_bytes(self, outputs: Sequence[Tensor]) -> int:
        """Return the bytes kept, the segment's own output among them."""
        for output in outputs:
            self._keep(output)
        return sum(tensor.untyped_storage().nbytes() for tensor in self._kept.values())

    def _keep(self, tensor: Tensor) -> None:
        if (storage := _storage(tensor)) not in self._known:
            self._kept[storage] = tensor.detach()  # alive, so that its address stays its own


def _unchanged(tensor: Tensor) -> Tensor:
    return tensor


def _storage(tensor: Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def _num_bytes(tensors: Iterable[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in tensors)


def _micro(entering: _Boundary) -> MicroBatch:
    return MicroBatch(step=0, index=0, rows=entering.rows, virtual_replica=0, ends_virtual_replica=False)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], ProfileHost))
