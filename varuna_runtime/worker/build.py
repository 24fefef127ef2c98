"""Turns a plan's stage into running parts: real segments, in-stage ties shared, accumulators, optimizer."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor, nn

from varuna_runtime.partition import PartitionedModel
from varuna_runtime.spec.job import Exactness
from varuna_runtime.spec.layout import Stage
from varuna_runtime.spec.model import TiedParameter
from varuna_runtime.worker.accumulate import Accumulator, Unit, dealt_ranges, spaces_of
from varuna_runtime.worker.buffers import StatisticsFold
from varuna_runtime.worker.gather import ParameterGather
from varuna_runtime.worker.gradients import StageGradients, space_gradients
from varuna_runtime.worker.looking import Looks
from varuna_runtime.worker.optimizer import StageOptimizer
from varuna_runtime.worker.segment import SegmentRunner
from varuna_runtime.worker.shares import Offload, OwnedSpace, shares_of
from varuna_runtime.worker.stage import StageRunner
from varuna_runtime.worker.training import ResolvedTraining, Training


class Materialise(Protocol):
    """Makes one segment real."""

    def __call__(
        self, index: int, *, seed: int, device: torch.device, shared: dict[int, Tensor] | None
    ) -> nn.Module:
        """See `PartitionedModel.materialise`."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class BuiltStage:
    """Everything one rank computes with."""

    segments: tuple[SegmentRunner, ...]
    accumulators: tuple[Accumulator, ...]  # in order of segment
    ranges: tuple[tuple[slice, ...], ...]  # by accumulator, then replica: the elements that it owns
    runner: StageRunner
    gradients: StageGradients
    statistics: StatisticsFold
    ties: tuple[TiedParameter, ...]  # trained parameters that this stage uses and some other segment too
    optimizer: StageOptimizer
    gather: ParameterGather | None  # where replicas share the optimizer


def build_stage(
    training: Training,
    settings: ResolvedTraining,
    model: PartitionedModel,
    stage: Stage,
    device: torch.device,
    *,
    replicas: int = 1,
    replica: int = 0,
    offload: Offload | None = None,
    materialise: Materialise | None = None,
) -> BuiltStage:
    """Materialise segments [first, last) with their initial values and wire them up.

    `offload` is memory of the host for an optimizer that is not to live on `device`. `materialise` is a
    method of `model` that makes a segment, other than with its initial values.
    """
    segments, optimizer = _segments_and_optimizer(training, settings, model, stage, device, materialise)
    modules = {segment.index: segment.module for segment in segments}
    ties = tuple(tie for tie in model.tied if _is_trained_in(tie, modules))
    tied_names = {use.name for tie in ties for use in tie.uses}
    accumulators = [
        [Accumulator(space, device) for space in spaces_of(s.index, s.parameters, alone=tied_names)]
        for s in segments
    ]
    is_sharded = settings.shard_optimizer and replicas > 1
    in_blocks = optimizer.is_elementwise and _is_contiguous(model)
    unit = (Unit.BLOCK if in_blocks else Unit.PARAMETER) if is_sharded else Unit.STRIP
    owned = _owned_spaces(segments, accumulators, replicas, unit)
    shares = shares_of(owned, replica if is_sharded else None)
    if is_sharded:
        optimizer.keep(shares)
    if offload is not None:
        optimizer.offload(offload)
    statistics = StatisticsFold(list(modules.values()))
    return BuiltStage(
        segments=segments,
        accumulators=tuple(a for of_segment in accumulators for a in of_segment),
        ranges=tuple(space.ranges for space in owned),
        runner=StageRunner(
            segments,
            accumulators,
            statistics,
            seed=settings.seed,
            recompute=stage.recompute,
            loss=training.loss if stage.last == model.num_segments else None,
        ),
        gradients=StageGradients([space_gradients(each, shares) for each in owned], ties),
        statistics=statistics,
        ties=ties,
        optimizer=optimizer,
        gather=ParameterGather(owned, replicas) if is_sharded else None,
    )


def _segments_and_optimizer(
    training: Training,
    settings: ResolvedTraining,
    model: PartitionedModel,
    stage: Stage,
    device: torch.device,
    materialise: Materialise | None,
) -> tuple[tuple[SegmentRunner, ...], StageOptimizer]:
    """Make both; an optimizer made from initial values is given them, though others will be loaded.

    What it takes from them, slow weights or an anchor say, is not all in its state.
    """
    segments = _segments(settings, model, stage, device, materialise or model.materialise)
    named = _named_parameters(model, {segment.index: segment.module for segment in segments})
    with Looks(parameter for _, parameter in named) as looks:
        optimizer = StageOptimizer(named, optimizer=training.optimizer, scheduler=training.scheduler)
    if materialise is not None and looks.are_noted:
        return _segments_and_optimizer(training, settings, model, stage, device, None)
    return segments, optimizer


def _segments(
    settings: ResolvedTraining,
    model: PartitionedModel,
    stage: Stage,
    device: torch.device,
    materialise: Materialise,
) -> tuple[SegmentRunner, ...]:
    shared: dict[int, Tensor] = {}  # a tied parameter is one inside a stage, so that it is stepped once
    return tuple(
        SegmentRunner(
            index,
            materialise(index, seed=settings.seed, device=device, shared=shared),
            dict(model.state_names(index)),
            device=device,
            precision=settings.precision,
            forbid_mutation=settings.exactness is Exactness.BITWISE,
        )
        for index in range(stage.first, stage.last)
    )


def _owned_spaces(
    segments: Sequence[SegmentRunner],
    accumulators: Sequence[Sequence[Accumulator]],
    replicas: int,
    unit: Unit,
) -> list[OwnedSpace]:
    """Deal every space to the replicas; in order of accumulators."""
    held = [
        (a.space, tuple(segment.parameters[p][1] for p in a.space.positions))
        for segment, of_segment in zip(segments, accumulators, strict=True)
        for a in of_segment
    ]
    ranges = dealt_ranges([space for space, _ in held], replicas, unit)
    return [
        OwnedSpace(space=space, parameters=parameters, ranges=parts)
        for (space, parameters), parts in zip(held, ranges, strict=True)
    ]


def tensors_of(model: PartitionedModel, segment: SegmentRunner) -> dict[str, Tensor]:
    """Return the live parameters and buffers recorded under a segment, by `param:` or `buffer:` name."""
    local = {name: key for key, name in segment.names.items()}
    found: dict[str, Tensor] = {}
    for record in model.record_segments[segment.index].tensors:
        if record.is_buffer:
            found[f"buffer:{record.name}"] = segment.module.get_buffer(local[record.name])
        else:
            found[f"param:{record.name}"] = segment.module.get_parameter(local[record.name]).detach()
    return found


def _is_trained_in(tie: TiedParameter, modules: Mapping[int, nn.Module]) -> bool:
    """True if one of `modules` uses the parameter and it is not frozen."""
    return any(
        modules[use.segment].get_parameter(use.name).requires_grad
        for use in tie.uses
        if use.segment in modules
    )


def _is_contiguous(model: PartitionedModel) -> bool:
    """True if each parameter can be shared in slices: a flat slice of any other is not in its memory.

    Asked of the whole model, so that every stage deals a tied parameter alike.
    """
    indices = range(model.num_segments)
    return all(p.is_contiguous() for i in indices for p in model.meta_segment(i).parameters())


def _named_parameters(
    model: PartitionedModel, modules: dict[int, nn.Module]
) -> list[tuple[str, nn.Parameter]]:
    """Return every parameter of the model once, by its first use; foreign ones on the meta device."""
    first_use = {use: tie.uses[0].name for tie in model.tied for use in tie.uses}
    named: dict[str, nn.Parameter] = {}
    for index in range(model.num_segments):
        module = modules.get(index, model.meta_segment(index))
        found = dict(module.named_parameters())
        uses = {(use.segment, use.name): name for use, name in first_use.items() if use.segment == index}
        for local, global_name in model.state_names(index).items():
            if local not in found:
                continue
            name = uses.get((index, global_name), global_name)
            if name not in named or named[name].is_meta:
                named[name] = found[local]
    return list(named.items())
