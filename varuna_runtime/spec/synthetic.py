"""Profiles made from a few numbers, for what was never measured. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

from varuna_runtime.spec.model import ModelRecord, SegmentRecord, TensorRecord
from varuna_runtime.spec.profile import LinkCost, Profile, ProfiledModel, SegmentCost, SegmentProfile

FLOAT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class SyntheticCosts:
    """Costs of each of some equal segments for one micro-batch of `micro_batch_size` samples."""

    micro_batch_size: int
    forward_s: float
    backward_s: float
    output_bytes: int
    saved_bytes: int
    optimizer_factor: float  # optimizer state over parameter bytes
    optimizer_step_s_per_byte: float
    same_node: LinkCost
    cross_node: LinkCost


def equal_segments(num_segments: int, param_bytes: int) -> ModelRecord:
    """Return the structure of a model of equal segments, each with one parameter."""
    return ModelRecord(
        segments=tuple(
            SegmentRecord(
                index=index,
                name=f"segment{index}",
                tensors=(
                    TensorRecord(name=f"weight{index}", shape=(param_bytes // FLOAT_BYTES,), dtype="float32"),
                ),
                param_bytes=param_bytes,
            )
            for index in range(num_segments)
        ),
        tied=(),
        num_samples=None,
        num_steps=1000,
    )


def synthetic(model: ModelRecord, costs: SyntheticCosts) -> ProfiledModel:
    """Return a profile in which every segment of `model` costs the same; parameters are the model's own."""
    at = SegmentProfile(
        micro_batch_size=costs.micro_batch_size,
        segments=_segments([segment.param_bytes for segment in model.segments], costs),
    )
    profile = Profile(
        model_hash=model.hash(),
        device_kind="",
        by_micro_batch=(at,),
        same_node=costs.same_node,
        cross_node=costs.cross_node,
        optimizer_step_s_per_byte=costs.optimizer_step_s_per_byte,
        measured_on="no machine: it is synthetic",
    )
    return ProfiledModel(model=model, profile=profile)


def _segments(param_bytes: Sequence[int], costs: SyntheticCosts) -> tuple[SegmentCost, ...]:
    last = len(param_bytes) - 1
    return tuple(
        SegmentCost(
            forward_s=costs.forward_s,
            backward_s=costs.backward_s,
            output_bytes=0 if index == last else costs.output_bytes,
            saved_bytes=costs.saved_bytes,
            param_bytes=num_bytes,
            optimizer_bytes=round(num_bytes * costs.optimizer_factor),
            workspace_bytes=num_bytes + costs.output_bytes,
        )
        for index, num_bytes in enumerate(param_bytes)
    )
