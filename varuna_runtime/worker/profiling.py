"""Measures the segments of a job through the stage runner of the engine; holds one segment at a time.

A subprocess: `python -m varuna_runtime.worker.profiling --job JOB.json --workdir DIR --fd N ENTRY ARGS...`.
"""

import sys
from dataclasses import replace
from typing import NoReturn

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from varuna_runtime.partition import PartitionedModel
from varuna_runtime.spec.batches import micro_batch_rows
from varuna_runtime.spec.errors import InvalidInput, ModelRefused
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.layout import Stage
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.profile import LinkCost, Profile, ProfiledModel, SegmentCost, SegmentProfile
from varuna_runtime.worker.build import build_stage
from varuna_runtime.worker.clock import now_s
from varuna_runtime.worker.copy_probe import host_to_device_bps
from varuna_runtime.worker.data import SampleSource
from varuna_runtime.worker.hosts import ScriptStopped
from varuna_runtime.worker.inspection import main
from varuna_runtime.worker.memory_probe import num_bytes
from varuna_runtime.worker.partitioning import partition_of
from varuna_runtime.worker.samples import quantiles, typical
from varuna_runtime.worker.segment_probe import (
    Clock,
    Entering,
    OptimizerCost,
    SegmentProbe,
    Times,
    segment_cost,
)
from varuna_runtime.worker.training import ResolvedTraining, Training, resolve

GUESSED_LINK = LinkCost(latency_s=1e-4, bandwidth_bps=1e10)
"""Stands for every link until one was measured: about what loopback gives on a small machine."""
LARGEST_AUTO_SIZE = 64
BUDGET_S = 20.0
SHORTEST_S = 1e-3
"""How much shorter ops differ says more of the machine's other work than of the job."""


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
        profile = measure(training, partitioned, self._spec, device, device_kind=kind_of(device))
        self.answer = ProfiledModel(model=_record(partitioned, settings), profile=profile)
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
    two as long as the next one is expected to end within `budget_s`. Each time is a median after a warm-up,
    of more timings where they differ. Draws from the global random state.
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
        compute_factor=quantiles(probe.factors),
        host_to_device_bps=host_to_device_bps(device),
        measured_on=f"{measured_on} (links guessed)",
    )


def kind_of(device: torch.device) -> str:
    """Return the same words as the agent's."""
    if device.type == "cuda":
        return f"cuda:{torch.cuda.get_device_name(device)}"
    return f"cpu:{torch.backends.cpu.get_cpu_capability().lower()}"


def _sizes(settings: ResolvedTraining) -> tuple[int, ...]:
    if settings.batch is not None:
        return (settings.batch.micro_batch_size,)
    most = min(settings.batch_size, LARGEST_AUTO_SIZE)
    return tuple(1 << power for power in range(most.bit_length()))


def _record(partitioned: PartitionedModel, settings: ResolvedTraining) -> ModelRecord:
    return ModelRecord(
        segments=partitioned.record_segments,
        tied=partitioned.tied,
        aliases=partitioned.aliases,
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
        self._optimizers: dict[int, OptimizerCost] = {}
        self._param_bytes: dict[int, int] = {}
        self.factors: list[float] = []  # of every timed op over its median

    @property
    def optimizer_step_s_per_byte(self) -> float:
        """Seconds per parameter byte over the whole model; 0 for a model without parameters."""
        total_bytes = sum(self._param_bytes.values())
        total_s = sum(cost.step_s for cost in self._optimizers.values())
        return total_s / total_bytes if total_bytes else 0.0

    def at_size(self, size: int) -> SegmentProfile:
        """Measure every segment in order, each fed with what the one before gave."""
        entering = self._first(size)
        input_bytes = num_bytes(entering.values)
        costs: list[SegmentCost] = []
        for index in range(self._model.num_segments):
            cost, entering = self._segment(index, entering)
            costs.append(cost)
        return SegmentProfile(micro_batch_size=size, segments=tuple(costs), input_bytes=input_bytes)

    def _first(self, size: int) -> Entering:
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
        return Entering(values=self._training.model_inputs(batch), batch=batch, rows=rows)

    def _segment(self, index: int, entering: Entering) -> tuple[SegmentCost, Entering]:
        stage = Stage(first=index, last=index + 1, recompute=False)
        built = build_stage(self._training, self._settings, self._model, stage, self._device)
        is_last = index == self._model.num_segments - 1
        probe = SegmentProbe(
            built,
            entering,
            seed=self._settings.seed,
            loss=self._training.loss if is_last else None,
            device=self._device,
            clock=self._clock,
        )
        sizes = probe.sizes()
        times = probe.times(self._patience_s)
        self._note_factors(times)
        if index not in self._optimizers:
            self._param_bytes[index] = num_bytes(built.segments[0].module.parameters())
            self._optimizers[index] = probe.optimizer(self._patience_s)
        cost = segment_cost(
            sizes,
            times,
            self._optimizers[index],
            output_bytes=0 if is_last else num_bytes(probe.outputs),
            param_bytes=self._param_bytes[index],
        )
        return cost, Entering(values=probe.outputs, batch=entering.batch, rows=entering.rows)

    def _note_factors(self, times: Times) -> None:
        for kind in times.kinds:
            if (middle := typical(kind)) >= SHORTEST_S:
                self.factors += (time_s / middle for time_s in kind)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:], ProfileHost))
