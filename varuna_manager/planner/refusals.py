"""Why there is no plan, in words a user can act on."""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import replace

from varuna_manager.planner.candidates import Shape
from varuna_manager.planner.pools import SlotPool, pools
from varuna_manager.planner.request import PlannableNode, PlanRequest
from varuna_manager.planner.search import fits, least_memory_bytes
from varuna_runtime.spec.amounts import size as amount
from varuna_runtime.spec.batches import num_micro_batches
from varuna_runtime.spec.job import LayoutChoice, Objective
from varuna_runtime.spec.layout import Infeasible

UNPRICED_MAX = 3  # named in a refusal


def refused_request(request: PlanRequest, usable: Sequence[PlannableNode]) -> Infeasible | None:
    """Return why no plan can exist before any memory or time is looked at."""
    spec, segments = request.spec, len(request.model.segments)
    measured = len(request.profile.by_micro_batch[0].segments)
    if segments != measured:
        return Infeasible(
            reason=f"the profile has {measured} segments, the model {segments}", change="profile it again"
        )
    wanted = spec.layout.stages
    if isinstance(wanted, int) and wanted > segments:
        return Infeasible(
            reason=f"layout.stages is {wanted}, but the model has only {segments} segments",
            change=f"set layout.stages to at most {segments}, or mark more cut points in the model",
        )
    if len(usable) < spec.nodes.min:
        return _too_few_nodes(request, usable)
    return _too_few_slots(request, usable) or _unpriced(request, usable)


def refused_shapes(request: PlanRequest, choices: Sequence[Shape]) -> Infeasible | None:
    """Return why no batch shape allows the pinned micro-batch size, virtual replicas and replicas."""
    spec = request.spec
    if not choices:
        return Infeasible(
            reason=f"no micro-batch size cuts batch_size {spec.batch_size} into at least "
            f"{spec.virtual_replicas} micro-batches (virtual_replicas)",
            change="lower virtual_replicas or micro_batch_size",
        )
    wanted = spec.layout.replicas
    most = max(shape.batch.virtual_replicas for shape in choices)
    if isinstance(wanted, int) and wanted > most:
        num_micro = max(num_micro_batches(spec.batch_size, s.batch.micro_batch_size) for s in choices)
        return Infeasible(
            reason=f"layout.replicas is {wanted}, but a step has only {most} virtual replicas "
            f"of {num_micro} micro-batches",
            change=f"set layout.replicas to at most {most}{_more_replicas(request, wanted, num_micro)}",
        )
    return None


def _more_replicas(request: PlanRequest, wanted: int, num_micro: int) -> str:
    if request.batch is not None:  # kept for the job's whole life
        return ""
    if num_micro >= wanted:
        return f", or virtual_replicas to at least {wanted}"
    return ", or use smaller micro-batches"


def refused_memory(
    request: PlanRequest, choices: Sequence[Shape], usable: Sequence[PlannableNode], found: Sequence[SlotPool]
) -> Infeasible:
    """Return how much memory the least demanding layout would need, and how many more nodes would do."""
    need, closest = least_memory_bytes(request, choices, found)
    size = choices[closest.shape].batch.micro_batch_size
    have = max(pool.memory_bytes for pool in found)
    return Infeasible(
        reason=f"no layout fits: the least demanding, {closest.layout} with micro-batches of {size}, "
        f"needs {amount(need)} a slot, the largest slot has {amount(have)}",
        change=f"{_unpinned(request, choices, found)}{_more_nodes(request, choices, usable)}"
        f"use slots with {amount(need)}, {'' if size == 1 or request.batch else 'smaller micro-batches, '}"
        "or more cut points",
    )


def _unpinned(request: PlanRequest, choices: Sequence[Shape], found: Sequence[SlotPool]) -> str:
    """Name what the job pins and need not: without it there is a plan."""
    frees: tuple[tuple[str, dict[str, object]], ...] = (
        ("layout.stages and layout.replicas", {"layout": LayoutChoice()}),
        ("schedule", {"schedule": "auto"}),
    )
    for name, free in frees:
        spec = request.spec.model_copy(update=free)
        freed = replace(request, spec=spec)
        if spec != request.spec and any(fits(freed, shape, found) for shape in choices):
            return f"leave {name} to auto, "
    return ""


def _more_nodes(request: PlanRequest, choices: Sequence[Shape], usable: Sequence[PlannableNode]) -> str:
    """Say how few nodes like the roomiest one would do; more nodes never fit less."""
    limit = request.spec.nodes.max
    roomiest = max(usable, key=lambda node: (node.memory_bytes, node.slots, node.node))

    def is_enough(more: int) -> bool:
        added = (replace(roomiest, node=f"{roomiest.node}+{i}") for i in range(more))
        found = pools([*usable, *added], limit)
        return any(fits(request, shape, found) for shape in choices)

    fewest = bisect_left(range(limit + 1), True, key=is_enough)
    if fewest > limit:
        return ""
    return f"add {fewest} node{'s' if fewest > 1 else ''} like {roomiest.node}, "


def _too_few_nodes(request: PlanRequest, usable: Sequence[PlannableNode]) -> Infeasible:
    spec, kind = request.spec, request.profile.device_kind
    others = len(request.nodes) - len(usable)
    foreign = f" ({others} more are not of the job's device kind {kind})" if others else ""
    missing = spec.nodes.min - len(usable)
    return Infeasible(
        reason=f"nodes.min is {spec.nodes.min}, usable nodes: {len(usable)}{foreign}",
        change=f"add {missing} node{'s' if missing > 1 else ''}, or lower nodes.min",
    )


def _unpriced(request: PlanRequest, usable: Sequence[PlannableNode]) -> Infeasible | None:
    """`objective: cost` compares prices, so every node must have one; 0 is one."""
    unpriced = sorted(node.node for node in usable if node.price_per_hour is None)
    if request.spec.objective is not Objective.COST or not unpriced:
        return None
    shown = ", ".join(unpriced[:UNPRICED_MAX]) + (" ..." if len(unpriced) > UNPRICED_MAX else "")
    return Infeasible(
        reason=f"objective is cost, and {len(unpriced)} of {len(usable)} nodes have no known price: {shown}",
        change="give `price` to their pool in manager.yaml, 0 for machines of one's own; "
        "or choose another objective",
    )


def _too_few_slots(request: PlanRequest, usable: Sequence[PlannableNode]) -> Infeasible | None:
    layout, limit = request.spec.layout, request.spec.nodes.max
    stages = layout.stages if isinstance(layout.stages, int) else 1
    replicas = layout.replicas if isinstance(layout.replicas, int) else 1
    slots = sum(sorted((node.slots for node in usable), reverse=True)[:limit])
    if stages * replicas <= slots:
        return None
    return Infeasible(
        reason=f"the pinned layout needs at least {stages * replicas} slots, "
        f"{min(len(usable), limit)} usable nodes have {slots}",
        change=f"add {stages * replicas - slots} slots, or leave layout.stages and layout.replicas to auto",
    )
