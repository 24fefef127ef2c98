"""The model's costs at one micro-batch size, as prefix sums: any run of segments is one subtraction."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from varuna_manager.planner.sums import SumCost
from varuna_runtime.spec.layout import ScheduleKind
from varuna_runtime.spec.profile import LinkCost, Profile, SegmentCost, SegmentProfile

Floats = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Workload:
    """Prefix sums have num_segments + 1 entries: segments [i, k) cost `prefix[k] - prefix[i]`."""

    micro_batch_size: int
    measured_size: int  # micro-batch size the costs were measured at; scaled from there when it differs
    forward_s: Floats
    backward_s: Floats
    recompute_s: Floats
    input_s: Floats  # the part of the backward before the gradients of the inputs leave, where it is split
    split_s: Floats  # a backward in two parts, never less than a whole one
    saved_bytes: Floats
    owed_bytes: Floats  # of a micro-batch between I and W
    param_bytes: Floats
    optimizer_bytes: Floats  # on the device, of all replicas together where they share it
    is_optimizer_sharded: bool
    peaks: "Peaks"
    boundary_bytes: Floats  # not a sum: what enters a stage that starts at i; 0 behind the last segment
    optimizer_step_s_per_byte: float
    same_node: LinkCost
    cross_node: LinkCost
    near_sums: SumCost  # over replicas on one node
    far_sums: SumCost
    last_compute: float = 1.0  # time of the step's last micro-batch, which may be short, over the others'
    last_bytes: float = 1.0  # the same of its messages
    compute_factor: tuple[float, ...] = ()  # see `Profile`

    @property
    def num_segments(self) -> int:
        """Number of segments of the model."""
        return len(self.forward_s) - 1

    @property
    def compute_s(self) -> Floats:
        """Prefix sums of forward plus backward without recompute."""
        return self.forward_s + self.backward_s

    def backward_under(self, schedule: ScheduleKind) -> Floats:
        """Return the prefix sums of what a backward takes in a schedule."""
        return self.split_s if schedule is ScheduleKind.ZERO_BUBBLE else self.backward_s


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Peaks:
    """Most bytes alive while one micro-batch runs; not sums: `peak[i, k]` is of the stage [i, k)."""

    whole: Floats  # forward and backward: what earlier segments keep, and the workspace of the running one
    split: Floats  # the same where the first I of a start is tried
    replayed: Floats  # a forward that keeps nothing: two neighbours' graphs at a time
    step: Floats  # an optimizer step, beside its state
    scratch: Floats  # for norms, all the time


def workload(
    profile: Profile,
    micro_batch_size: int,
    *,
    last_size: int | None = None,
    shard_optimizer: bool = False,
    offload_optimizer: bool = False,
) -> Workload:
    """Return the costs at `micro_batch_size`, scaled from the nearest size that was measured.

    `last_size` is the size of a step's last micro-batch, None where it is as large as the others. The flags
    are the job's; only a GPU has a host to hand its optimizer to.
    """
    is_elsewhere = offload_optimizer and profile.device_kind.startswith("cuda")
    measured = _nearest(profile, micro_batch_size)
    scale = micro_batch_size / measured.micro_batch_size
    costs = [_scaled(cost, scale) for cost in measured.segments]
    last_size = last_size or micro_batch_size
    boundaries = [measured.input_bytes * scale, *(cost.output_bytes for cost in costs[:-1])]
    return Workload(
        micro_batch_size=micro_batch_size,
        measured_size=measured.micro_batch_size,
        forward_s=_prefix([cost.forward_s for cost in costs]),
        backward_s=_prefix([cost.backward_s for cost in costs]),
        recompute_s=_prefix([_or(cost.recompute_s, cost.forward_s) for cost in costs]),
        input_s=_prefix([_or(cost.input_s, cost.backward_s / 2) for cost in costs]),
        split_s=_prefix([_split_s(cost) for cost in costs]),
        saved_bytes=_prefix([cost.saved_bytes for cost in costs]),
        owed_bytes=_prefix([_or(cost.owed_bytes, cost.saved_bytes) for cost in costs]),
        param_bytes=_prefix([cost.param_bytes for cost in costs]),
        optimizer_bytes=_prefix([0 if is_elsewhere else cost.optimizer_bytes for cost in costs]),
        peaks=_peaks(costs),
        is_optimizer_sharded=shard_optimizer,
        boundary_bytes=np.array([*boundaries, 0.0]),
        optimizer_step_s_per_byte=profile.optimizer_step_s_per_byte,
        same_node=profile.same_node,
        cross_node=profile.cross_node,
        near_sums=SumCost.of(profile.same_node, (r for r in profile.reductions if not r.crosses_nodes)),
        far_sums=SumCost.of(profile.cross_node, (r for r in profile.reductions if r.crosses_nodes)),
        last_compute=_last_compute(profile, micro_batch_size, last_size),
        last_bytes=last_size / micro_batch_size,
        compute_factor=profile.compute_factor,
    )


@lru_cache(maxsize=32)
def at_speed(work: Workload, speed: float) -> Workload:
    """Return the costs on slots that are `speed` times as fast as the profile's; links stay as they are.

    Equal questions get the same object, by which more is kept for the next plan.
    """
    if speed == 1.0:
        return work
    return replace(
        work,
        forward_s=work.forward_s / speed,
        backward_s=work.backward_s / speed,
        recompute_s=work.recompute_s / speed,
        input_s=work.input_s / speed,
        split_s=work.split_s / speed,
        optimizer_step_s_per_byte=work.optimizer_step_s_per_byte / speed,
    )


def transfer_s(link: LinkCost, num_bytes: float) -> float:
    """Return how long `num_bytes` occupy one direction of a link, without its latency."""
    return num_bytes * 8 / link.bandwidth_bps


def _split_s(cost: SegmentCost) -> float:
    if cost.input_s is None or cost.weight_s is None:
        return cost.backward_s
    return max(cost.backward_s, cost.input_s + cost.weight_s)


def _nearest(profile: Profile, micro_batch_size: int) -> SegmentProfile:
    return min(
        profile.by_micro_batch,
        key=lambda at: (abs(at.micro_batch_size - micro_batch_size), at.micro_batch_size),
    )


def _last_compute(profile: Profile, micro_batch_size: int, last_size: int) -> float:
    whole_s = _compute_s(profile, micro_batch_size)
    if last_size == micro_batch_size or whole_s <= 0:
        return 1.0
    return min(_compute_s(profile, last_size) / whole_s, 1.0)


def _compute_s(profile: Profile, micro_batch_size: int) -> float:
    """Return the forward and backward time of the whole model."""
    measured = _nearest(profile, micro_batch_size)
    one_s = sum(cost.forward_s + cost.backward_s for cost in measured.segments)
    return one_s * micro_batch_size / measured.micro_batch_size


def _scaled(cost: SegmentCost, scale: float) -> SegmentCost:
    """Return the cost at `scale` times the micro-batch; parameters and their gradients stay as they are."""
    if scale == 1:
        return cost
    return replace(
        cost.times_as_long(scale),
        output_bytes=math.ceil(cost.output_bytes * scale),
        saved_bytes=math.ceil(cost.saved_bytes * scale),
        owed_bytes=None if cost.owed_bytes is None else math.ceil(cost.owed_bytes * scale),
        workspace_bytes=_grown(cost.workspace_bytes, cost.param_bytes, scale),
        split_workspace_bytes=_grown(cost.split_workspace_bytes, 3 * cost.param_bytes, scale),
    )


def _grown(workspace_bytes: int, gradient_bytes: int, scale: float) -> int:
    fixed = min(workspace_bytes, gradient_bytes)
    return fixed + math.ceil((workspace_bytes - fixed) * scale)


def _peaks(costs: Sequence[SegmentCost]) -> Peaks:
    saved = np.array([cost.saved_bytes for cost in costs], dtype=float)
    workspace = np.array([cost.workspace_bytes for cost in costs], dtype=float)
    split = np.array([cost.split_workspace_bytes for cost in costs], dtype=float)
    before = _prefix(saved.tolist())
    neighbours = saved + np.concatenate(([0.0], saved[:-1]))
    return Peaks(
        whole=_most(before[1:] + workspace, before),
        split=_most(before[1:] + np.maximum(split, workspace), before),
        replayed=np.maximum(np.append(saved, 0.0)[:, None], np.roll(_most(neighbours), -1, axis=0)),
        step=_most(np.array([cost.step_bytes for cost in costs], dtype=float)),
        scratch=_most(np.array([cost.scratch_bytes for cost in costs], dtype=float)),
    )


def _most(values: Floats, before: Floats | None = None) -> Floats:
    """Return for every run [i, k) the largest of its values, less `before[i]`; 0 where it is empty."""
    size = len(values)
    first, at = np.ogrid[:size, :size]
    runs = np.maximum.accumulate(np.where(at >= first, values, -np.inf), axis=1)
    table = np.zeros((size + 1, size + 1))
    table[:-1, 1:] = np.where(at >= first, runs - (0.0 if before is None else before[:-1, None]), 0.0)
    return table


def _or(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


def _prefix(values: Sequence[float]) -> Floats:
    return np.concatenate(([0.0], np.cumsum(values, dtype=float)))
