"""What the running plan takes by the profile of a new question, so that like is compared with like."""

from collections import Counter
from collections.abc import Iterable
from dataclasses import replace
from itertools import accumulate
from math import gcd

from varuna_manager.planner.candidates import Shape
from varuna_manager.planner.pipeline import pipeline
from varuna_manager.planner.pools import SlotPool
from varuna_manager.planner.request import PlannableNode, PlanRequest
from varuna_manager.planner.simulate import simulate
from varuna_manager.planner.workload import at_speed
from varuna_runtime.spec.layout import Plan


def running_step_s(request: PlanRequest, shapes: Iterable[Shape]) -> float | None:
    """Return the predicted step of `request.running` on the nodes it has; None where that cannot be told."""
    running = request.running
    if running is None:
        return None
    shape = next((one for one in shapes if one.batch == running.batch), None)
    known = {node.node: node for node in request.nodes}
    if shape is None or not known.keys() >= set(running.nodes):
        return None
    pool = _pool(running, known)
    timing = pipeline(
        at_speed(shape.work, pool.speed),
        request.model,
        shape.batch,
        pool,
        layout=running.layout,
        schedule=running.schedule,
        stages=running.stages,
    )
    return simulate(timing).step_s


def _pool(plan: Plan, known: dict[str, PlannableNode]) -> SlotPool:
    """Return the nodes of a plan in the order of its ranks, in the largest units that its ranks fill."""
    ranks = Counter(slot.node for slot in plan.placement)  # in order of first appearance
    *full, last = ranks.values()
    unit = gcd(*full) if full else last
    units = [-(-count // unit) for count in ranks.values()]
    nodes = tuple(  # what would give them another order is left out
        replace(known[node], slots=size * unit, domain="", price_per_hour=0.0)
        for node, size in zip(ranks, units, strict=True)
    )
    return SlotPool(
        memory_bytes=min(node.memory_bytes for node in nodes),
        speed=min(node.speed for node in nodes),
        unit_slots=unit,
        nodes=nodes,
        unit_ends=tuple(accumulate(units)),
        price_ends=(0.0,) * len(nodes),
    )
