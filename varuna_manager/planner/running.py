"""What the running plan takes by the profile of a new question, so that like is compared with like."""

from collections import Counter
from collections.abc import Iterable, Mapping
from itertools import accumulate
from math import gcd

from varuna_manager.planner.candidates import Shape
from varuna_manager.planner.pipeline import pipeline
from varuna_manager.planner.pools import SlotPool
from varuna_manager.planner.request import PlannableNode, PlanRequest
from varuna_manager.planner.simulate import simulate
from varuna_runtime.spec.layout import Plan


def running_step_s(request: PlanRequest, shapes: Iterable[Shape]) -> float | None:
    """Return the predicted step of `request.running` on the nodes it has; None where none is given.

    A node that is not offered, as it is about to leave, counts as one like the profile's.
    """
    running = request.running
    if running is None:
        return None
    shape = next((one for one in shapes if one.batch == running.batch), None)
    if shape is None:
        return None
    pool = _pool(running)
    timing = pipeline(
        shape.work,
        request.model,
        shape.batch,
        pool,
        layout=running.layout,
        schedule=running.schedule,
        stages=running.stages,
        speeds=_stage_speeds(running, {node.node: node.speed for node in request.nodes}),
    )
    return simulate(timing).step_s


def _stage_speeds(plan: Plan, speeds: Mapping[str, float]) -> tuple[float, ...]:
    """Return the speed of the slowest slot of each stage."""
    of_rank = [speeds.get(slot.node, 1.0) for slot in plan.placement]
    return tuple(min(of_rank[stage :: plan.layout.stages]) for stage in range(plan.layout.stages))


def _pool(plan: Plan) -> SlotPool:
    """Return the nodes of a plan in the order of its ranks, in the largest units that its ranks fill."""
    ranks = Counter(slot.node for slot in plan.placement)  # in order of first appearance
    *full, last = ranks.values()
    unit = gcd(*full) if full else last
    units = [-(-count // unit) for count in ranks.values()]
    nodes = tuple(
        PlannableNode(node=name, slots=size * unit, memory_bytes=0, device_kind="")
        for name, size in zip(ranks, units, strict=True)
    )
    return SlotPool(
        memory_bytes=0,  # no time depends on it
        speed=1.0,
        unit_slots=unit,
        nodes=nodes,
        unit_ends=tuple(accumulate(units)),
        price_ends=(0.0,) * len(nodes),
    )
