"""How a profile looks in a terminal."""

from dataclasses import replace
from itertools import groupby
from statistics import median

from rich.console import Group, RenderableType

from varuna_manager.cli.tables import table
from varuna_runtime.spec.amounts import size
from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.profile import (
    LinkCost,
    Profile,
    ProfiledModel,
    ReduceCost,
    SegmentCost,
    SegmentProfile,
)

_COLUMNS = (
    "SEGMENTS",
    ">FORWARD",
    ">BACKWARD",
    ">RECOMPUTE",
    ">OUTPUT",
    ">SAVED",
    ">WORKSPACE",
    ">PARAMETERS",
    ">OPTIMIZER",
    "NAME",
)
_UNITS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))


def view(profiled: ProfiledModel) -> RenderableType:
    """Return tables of the segments, equal neighbours in one row, and lines about the rest."""
    profile = profiled.profile
    parts: list[RenderableType] = []
    for at in profile.by_micro_batch:
        samples = "sample" if at.micro_batch_size == 1 else "samples"
        parts += [f"micro-batches of {at.micro_batch_size} {samples}", _segments(at, profiled.model), ""]
    return Group(*parts, *_rest(profile))


def duration(value_s: float) -> str:
    """Return a short time with three useful digits, such as `1.25 ms`."""
    if value_s == 0:
        return "0 s"
    unit_s, name = next((unit for unit in _UNITS if value_s >= unit[0]), _UNITS[-1])
    return f"{value_s / unit_s:.3g} {name}"


def _segments(at: SegmentProfile, model: ModelRecord) -> RenderableType:
    runs = groupby(enumerate(at.segments), key=lambda one: _bytes_of(one[1]))
    return table(_COLUMNS, [_row(list(run), model) for _, run in runs])


def _bytes_of(cost: SegmentCost) -> SegmentCost:
    """Return what segments must share to be in one row: all but times."""
    return replace(cost, forward_s=0.0, backward_s=0.0, recompute_s=None, input_s=None, weight_s=None)


def _row(run: list[tuple[int, SegmentCost]], model: ModelRecord) -> tuple[object, ...]:
    (first, cost), (last, _) = run[0], run[-1]
    costs = [each for _, each in run]
    ends = [model.segments[index] for index in dict.fromkeys((first, last))]
    names = [segment.name for segment in ends if segment.name != str(segment.index)]
    replays = [each.recompute_s for each in costs if each.recompute_s is not None]
    return (
        str(first) if first == last else f"{first}..{last}",
        duration(median(each.forward_s for each in costs)),
        duration(median(each.backward_s for each in costs)),
        duration(median(replays)) if replays else "",
        size(cost.output_bytes),
        size(cost.saved_bytes),
        size(cost.workspace_bytes),
        size(cost.param_bytes),
        size(cost.optimizer_bytes),
        " .. ".join(names),
    )


def _rest(profile: Profile) -> list[str]:
    lines = [
        f"optimizer: {duration(profile.optimizer_step_s_per_byte * 2**30)} per GiB of parameters",
        f"link inside a node: {_link(profile.same_node)}",
        f"link between nodes: {_link(profile.cross_node)}",
    ]
    if sums := profile.reductions:
        lines.append(f"sums over replicas: {', '.join(map(_sum, sums))}")
    if profile.host_to_device_bps is not None:
        lines.append(f"host to device: {_rate(profile.host_to_device_bps)}")
    if factors := profile.compute_factor:
        low, high = factors[len(factors) // 20], factors[-1 - len(factors) // 20]
        lines.append(f"spread: nine of ten ops took {low:.2f} to {high:.2f} times their median")
    fitted = f", fitted to {profile.refreshed_by}" if profile.refreshed_by else ""
    return [*lines, f"measured on {profile.measured_on}{fitted}"]


def _link(cost: LinkCost) -> str:
    return f"{duration(cost.latency_s)} and {_rate(cost.bandwidth_bps)}"


def _sum(cost: ReduceCost) -> str:
    where = "" if cost.crosses_nodes else " on one node"
    return f"{size(cost.num_bytes)} over {cost.replicas}{where} in {duration(cost.seconds)}"


def _rate(bits_per_s: float) -> str:
    return f"{bits_per_s / 1e9:.3g} Gbit/s" if bits_per_s >= 1e9 else f"{bits_per_s / 1e6:.3g} Mbit/s"
