"""The planner's one question: which plan, or why none."""

from collections.abc import Sequence
from dataclasses import replace
from functools import lru_cache
from math import inf

from varuna_manager.planner.candidates import Shape, shapes
from varuna_manager.planner.explain import explanation
from varuna_manager.planner.pipeline import shares
from varuna_manager.planner.pools import SlotPool, by_price, pools
from varuna_manager.planner.refusals import refused_memory, refused_request, refused_shapes
from varuna_manager.planner.request import PlannableNode, PlanOutcome, PlanRequest
from varuna_manager.planner.running import running_step_s
from varuna_manager.planner.search import fits, plan_of, search
from varuna_runtime.spec.job import Exactness, Objective
from varuna_runtime.spec.programs import stage_program
from varuna_runtime.spec.schedule import Program
from varuna_runtime.spec.schedule_check import validate

CHECKED_OPS = 400
"""Forwards of all stages up to which a plan's programs are proven: longer ones go on as they began."""

PRICES_MAX = 16
"""Prices above which nodes are left out, in turn; pools have a few, thousands would take minutes."""


def plan(request: PlanRequest) -> PlanOutcome:
    """Return the best plan by the job's objective for the nodes given, with its explanation, or Infeasible.

    Works for any number of nodes; nodes that do not help stay idle. Pure and deterministic: equal requests
    give equal plans, and the order of `request.nodes` does not matter.
    """
    usable = _usable(request)
    refusal = refused_request(request, usable)
    if refusal is not None:
        return PlanOutcome(outcome=refusal, explanation=None)
    every = shapes(request)
    refusal = refused_shapes(request, every)
    if refusal is not None:
        return PlanOutcome(outcome=refusal, explanation=None)
    return _searched(request, usable, every)


def _searched(request: PlanRequest, usable: Sequence[PlannableNode], every: Sequence[Shape]) -> PlanOutcome:
    found = _pools(request, usable)
    choices = _lasting_shapes(request, usable, every)
    searched = search(replace(request, nodes=tuple(usable)), choices, found)
    if searched.best is None:
        return PlanOutcome(outcome=refused_memory(request, every, usable, found), explanation=None)
    chosen = plan_of(request, choices, searched.best)
    most = max(CHECKED_OPS // chosen.layout.stages, 1)
    for num_micro in {min(share, most) for share in shares(chosen.batch, chosen.layout.replicas)}:
        _check(tuple(stage_program(chosen, stage, num_micro) for stage in range(chosen.layout.stages)))
    return PlanOutcome(
        outcome=chosen,
        explanation=explanation(request, chosen, choices, searched),
        running_step_s=running_step_s(request, choices),
    )


def _pools(request: PlanRequest, usable: Sequence[PlannableNode]) -> tuple[SlotPool, ...]:
    limit = request.spec.nodes.max
    if request.spec.objective is not Objective.COST:
        return pools(usable, limit)
    prices = sorted({node.paid_per_hour for node in usable})
    return pools(usable, limit, by_price, (inf, *prices[:: -(-len(prices) // PRICES_MAX)][::-1]))


@lru_cache(maxsize=64)
def _check(programs: tuple[Program, ...]) -> None:
    validate(programs)


def _usable(request: PlanRequest) -> tuple[PlannableNode, ...]:
    """Return the nodes of the job's device kind: a bitwise job is pinned to the kind it was profiled on."""
    kind = request.profile.device_kind
    is_pinned = request.spec.exactness is Exactness.BITWISE and kind != ""
    return tuple(
        node for node in request.nodes if node.slots > 0 and (not is_pinned or node.device_kind == kind)
    )


def _lasting_shapes(
    request: PlanRequest, usable: Sequence[PlannableNode], every: Sequence[Shape]
) -> Sequence[Shape]:
    """Return the batch shapes that still fit at nodes.min, as m and V are kept for the job's whole life.

    All of them when none does: the job then parks above nodes.min rather than never starts.
    """
    if len(every) == 1:
        return every
    fewest = pools(usable, request.spec.nodes.min)
    return tuple(shape for shape in every if fits(request, shape, fewest)) or every
