"""The model's costs at one micro-batch size, as prefix sums: any run of segments is one subtraction."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from varuna_runtime.spec.profile import LinkCost, Profile, SegmentProfile

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """Prefix sums have num_segments + 1 entries: segments [i, k) cost `prefix[k] - prefix[i]`."""

    micro_batch_size: int
    measured_size: int  # micro-batch size the costs were measured at; scaled from there when it differs
    forward_s: Floats
    backward_s: Floats
    saved_bytes: Floats
    param_bytes: Floats
    optimizer_bytes: Floats  # on the device, of all replicas together where they share it
    is_optimizer_sharded: bool
    boundary_bytes: Floats  # not a sum: what enters a stage that starts at i; 0 behind the last segment
    optimizer_step_s_per_byte: float
    same_node: LinkCost
    cross_node: LinkCost

    @property
    def num_segments(self) -> int:
        """Number of segments of the model."""
        return len(self.forward_s) - 1

    @property
    def compute_s(self) -> Floats:
        """Prefix sums of forward plus backward without recompute."""
        return self.forward_s + self.backward_s


def workload(
    profile: Profile, micro_batch_size: int, *, shard_optimizer: bool = False, offload_optimizer: bool = False
) -> Workload:
    """Return the costs at `micro_batch_size`, scaled from the nearest size that was measured.

    The flags are the job's; only a GPU has a host to hand its optimizer to.
    """
    is_elsewhere = offload_optimizer and profile.device_kind.startswith("cuda")
    measured = _nearest(profile, micro_batch_size)
    scale = micro_batch_size / measured.micro_batch_size
    costs = measured.segments
    boundaries = [measured.input_bytes, *(cost.output_bytes for cost in costs[:-1])]
    return Workload(
        micro_batch_size=micro_batch_size,
        measured_size=measured.micro_batch_size,
        forward_s=_prefix([cost.forward_s * scale for cost in costs]),
        backward_s=_prefix([cost.backward_s * scale for cost in costs]),
        saved_bytes=_prefix([cost.saved_bytes * scale for cost in costs]),
        param_bytes=_prefix([cost.param_bytes for cost in costs]),
        optimizer_bytes=_prefix([0 if is_elsewhere else cost.optimizer_bytes for cost in costs]),
        is_optimizer_sharded=shard_optimizer,
        boundary_bytes=np.array([*(size * scale for size in boundaries), 0.0]),
        optimizer_step_s_per_byte=profile.optimizer_step_s_per_byte,
        same_node=profile.same_node,
        cross_node=profile.cross_node,
    )


def transfer_s(link: LinkCost, num_bytes: float) -> float:
    """Return how long `num_bytes` occupy one direction of a link, without its latency."""
    return num_bytes * 8 / link.bandwidth_bps


def _nearest(profile: Profile, micro_batch_size: int) -> SegmentProfile:
    return min(
        profile.by_micro_batch,
        key=lambda at: (abs(at.micro_batch_size - micro_batch_size), at.micro_batch_size),
    )


def _prefix(values: list[float]) -> Floats:
    return np.concatenate(([0.0], np.cumsum(values)))
