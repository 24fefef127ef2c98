"""What is wrong with a profile that comes from outside: numbers no machine has, or another model's. Pure."""

from collections.abc import Iterator
from dataclasses import asdict
from itertools import pairwise
from math import isfinite

from varuna_runtime.spec.model import ModelRecord
from varuna_runtime.spec.profile import LinkCost, Profile, ProfiledModel


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
    return next(_flaws(read.profile, len(read.model.segments), read.model.hash()), "")


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
        for index, cost in enumerate(at.segments):
            for name, value in asdict(cost).items():
                if value is not None and not (isfinite(value) and value >= 0):
                    yield f"{name} of segment {index} is {value}, wanted 0 or more"
    for name, link in (("same_node", profile.same_node), ("cross_node", profile.cross_node)):
        yield from _link_flaws(name, link)
    for one in profile.reductions:
        if one.replicas < 2 or one.num_bytes < 1 or not (isfinite(one.seconds) and one.seconds > 0):
            yield (
                f"a sum over {one.replicas} replicas of {one.num_bytes} bytes took {one.seconds} s, "
                "wanted two or more, and more than 0"
            )
    if (copies := profile.host_to_device_bps) is not None and not (isfinite(copies) and copies > 0):
        yield f"host_to_device_bps is {copies}, wanted more than 0, or null without a device to copy to"


def _link_flaws(name: str, link: LinkCost) -> Iterator[str]:
    if not (isfinite(link.latency_s) and link.latency_s >= 0):
        yield f"{name}.latency_s is {link.latency_s}, wanted 0 or more"
    if not (isfinite(link.bandwidth_bps) and link.bandwidth_bps > 0):
        yield f"{name}.bandwidth_bps is {link.bandwidth_bps}, wanted more than 0"
