"""Measured costs of a job's segments and links, in seconds and bytes; plain JSON with units in the names."""

from dataclasses import dataclass, replace

from varuna_runtime.spec import canonical
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.model import ModelRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentCost:
    """Cost of one segment for one micro-batch of `micro_batch_size` samples."""

    forward_s: float
    backward_s: float  # without recompute
    output_bytes: int  # what crosses a cut placed after this segment
    saved_bytes: int  # kept between forward and backward: activations and the output, not the input
    param_bytes: int
    optimizer_bytes: int
    recompute_s: float | None = None  # replay of the forward before the backward; None: as the forward
    input_s: float | None = None  # I of a split backward, all of it where it stays whole; None: half
    weight_s: float | None = None  # W of a split backward; None: what is left of the backward
    workspace_bytes: int = 0  # most alive in the middle of an op, beyond what was there and what F keeps
    split_workspace_bytes: int = 0  # the same where the backward is split and its first pass is tried
    owed_bytes: int | None = None  # kept between I and W; None: saved_bytes
    scratch_bytes: int = 0  # kept from step to step for the norm of its gradients
    step_bytes: int = 0  # most alive in the middle of an optimizer step, beyond its state

    def times_as_long(self, factor: float) -> "SegmentCost":
        """Return the cost with every op taking `factor` times as long; bytes stay."""
        return replace(
            self,
            forward_s=self.forward_s * factor,
            backward_s=self.backward_s * factor,
            recompute_s=None if self.recompute_s is None else self.recompute_s * factor,
            input_s=None if self.input_s is None else self.input_s * factor,
            weight_s=None if self.weight_s is None else self.weight_s * factor,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SegmentProfile:
    """Costs of every segment, in order, at one micro-batch size."""

    micro_batch_size: int
    segments: tuple[SegmentCost, ...]
    input_bytes: int = 0  # what the first segment takes from the data set


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkCost:
    """A message of n bytes takes latency_s + n / bandwidth_bps * 8."""

    latency_s: float
    bandwidth_bps: float
    late_s: tuple[float, ...] = ()  # evenly spaced quantiles, 0 to 1, of a message's delay beyond that


@dataclass(frozen=True, slots=True, kw_only=True)
class ReduceCost:
    """What one sum over replicas took, alone on the links, as a job's gradients are summed."""

    replicas: int
    num_bytes: int  # of float32 sums, per replica
    seconds: float
    crosses_nodes: bool = True  # else all replicas were on one node


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """Everything the planner knows of a job; measured once, reused for every layout."""

    model_hash: str
    device_kind: str
    by_micro_batch: tuple[SegmentProfile, ...]  # ascending micro-batch size, at least one
    same_node: LinkCost
    cross_node: LinkCost
    optimizer_step_s_per_byte: float  # seconds per parameter byte
    measured_on: str  # node names or "this machine", for the explanation
    compute_factor: tuple[float, ...] = ()  # evenly spaced quantiles of an op's time over its median
    reductions: tuple[ReduceCost, ...] = ()
    host_to_device_bps: float | None = None  # None: there is no device to copy to
    refreshed_by: str = ""  # whose steps the times were fitted to since they were measured


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfiledModel:
    """A profile with the model it is of: what a file holds, and what one look at a script shows."""

    model: ModelRecord
    profile: Profile


def workload_hash(model: ModelRecord, spec: JobSpec, bundle: str) -> str:
    """Return what a job's costs depend on beside the device; with its kind it keys the profile cache.

    The bundle stands for what no structure shows, such as the length of a sequence.
    """
    sizes = (spec.batch_size, spec.micro_batch_size, spec.precision, spec.threads_per_worker)
    return canonical.digest(
        (model.hash(), bundle, spec.entrypoint, spec.args, sorted(spec.env.items()), sizes)
    )
