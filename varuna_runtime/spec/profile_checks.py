"""What is wrong with a profile that comes from outside: numbers no machine has, or another model's. Pure."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from itertools import chain, pairwise
from math import isfinite

from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.profile import Profile, ProfiledModel

MOST = 1e18
"""Seconds or bytes of one thing; sums of them, and of what they are divided by, stay numbers."""
SLOWEST_BPS = 1.0


def difference(found: ModelRecord, wanted: ModelRecord) -> str:
    """Return the first difference in the segments of two models; empty where they are alike."""
    if len(found.segments) != len(wanted.segments):
        return f"it has {len(found.segments)} segments, the job's model has {len(wanted.segments)}"
    for one, other in zip(found.segments, wanted.segments, strict=True):
        if one.name != other.name:
            return f"its segment {one.index} is {one.name}, the job's is {other.name}"
        if one.param_bytes != other.param_bytes:
            return (
                f"its segment {one.index} ({one.name}) has {one.param_bytes} bytes of parameters, "
                f"the job's has {other.param_bytes}"
            )
        if one.tensors != other.tensors:
            return f"the tensors of segment {one.index} ({one.name}) differ"
    return ""


def flaw(read: ProfiledModel) -> str:
    """Return why no planner can use this profile; empty where one can."""
    own = _flaws(read.profile, len(read.model.segments), read.model.hash())
    return next(chain(own, _tied_flaws(read.model)), "")


def _flaws(profile: Profile, num_segments: int, model_hash: str) -> Iterator[str]:
    if not num_segments:
        yield "its model has no segments"
    if profile.model_hash != model_hash:
        yield "its costs are of another model than the one it holds"
    sizes = [at.micro_batch_size for at in profile.by_micro_batch]
    if not sizes or sizes[0] < 1 or any(one >= other for one, other in pairwise(sizes)):
        yield f"micro-batch sizes are {sizes}, wanted at least one, ascending from 1 or more"
    for at in profile.by_micro_batch:
        if len(at.segments) != num_segments:
            yield f"{len(at.segments)} segments have costs, the model has {num_segments}"
        yield from _number_flaws({"input_bytes": at.input_bytes})
        for index, cost in enumerate(at.segments):
            yield from _number_flaws({f"{name} of segment {index}": n for name, n in asdict(cost).items()})
        if not any(cost.forward_s + cost.backward_s for cost in at.segments):
            yield f"no segment takes any time for micro-batches of {at.micro_batch_size}"
    yield from _number_flaws({"optimizer_step_s_per_byte": profile.optimizer_step_s_per_byte})
    yield from _quantile_flaws("compute_factor", profile.compute_factor)
    for name, link in (("same_node", profile.same_node), ("cross_node", profile.cross_node)):
        yield from _number_flaws({f"{name}.latency_s": link.latency_s})
        yield from _rate_flaws(f"{name}.bandwidth_bps", link.bandwidth_bps)
        yield from _quantile_flaws(f"{name}.late_s", link.late_s)
    for one in profile.reductions:
        if one.replicas < 2 or not 1 <= one.num_bytes <= MOST or not 0 < one.seconds <= MOST:
            yield (
                f"a sum over {one.replicas} replicas of {one.num_bytes} bytes took {one.seconds} s, "
                "wanted two or more, and more than 0"
            )
    if profile.host_to_device_bps is not None:
        yield from _rate_flaws("host_to_device_bps", profile.host_to_device_bps)


def _number_flaws(numbers: dict[str, float | None]) -> Iterator[str]:
    for name, value in numbers.items():
        if value is not None and not 0 <= value <= MOST:
            yield f"{name} is {value}, wanted 0 to {MOST:g}"


def _rate_flaws(name: str, value: float) -> Iterator[str]:
    if not (isfinite(value) and value >= SLOWEST_BPS):
        yield f"{name} is {value}, wanted {SLOWEST_BPS:g} or more"


def _quantile_flaws(name: str, values: Sequence[float]) -> Iterator[str]:
    if len(values) == 1 or any(one > other for one, other in pairwise(values)):
        yield f"{name} is {list(values)}, wanted two or more quantiles that do not fall, or none"
    yield from _number_flaws({f"{name}[{index}]": value for index, value in enumerate(values)})


def _tied_flaws(model: ModelRecord) -> Iterator[str]:
    num_segments = len(model.segments)
    for tied in model.tied:
        wrong = [use.segment for use in tied.uses if not 0 <= use.segment < num_segments]
        if wrong or not tied.uses:
            yield f"a tied parameter is used in segments {wrong}, the model has {num_segments}"
