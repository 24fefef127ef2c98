"""The explanation of a plan: its stages, what lost and why, and how far it is from what is provable."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import isinf

from varuna_manager.planner.candidates import Shape
from varuna_manager.planner.memory import kept, peak_bytes
from varuna_manager.planner.movement import moved_bytes, needed_bytes
from varuna_manager.planner.outlook import UNSEEN
from varuna_manager.planner.pipeline import pipeline
from varuna_manager.planner.request import Explanation, PlanRequest, Rival, StageLine
from varuna_manager.planner.search import Scored, Searched
from varuna_manager.planner.simulate import Spread, quantiles, simulate
from varuna_manager.planner.timing import Boundary, Pipeline
from varuna_manager.planner.workload import at_speed
from varuna_runtime.spec.amounts import size
from varuna_runtime.spec.job import Objective
from varuna_runtime.spec.layout import Plan, Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Words:
    """How a comparison by one objective is told."""

    good: str
    better: str
    worse: str


WORDS = {
    Objective.THROUGHPUT: Words(good="fast", better="faster", worse="slower"),
    Objective.COST: Words(good="cheap", better="cheaper", worse="dearer a sample"),
    Objective.PROGRESS: Words(good="good", better="better", worse="slower, losses counted"),
}
RIVALS_MAX = 12
UNFIT_MAX = 3
SPREAD_SEEDS = 20  # as many steps as one in twenty is rare among


def explanation(
    request: PlanRequest, plan: Plan, choices: Sequence[Shape], searched: Searched
) -> Explanation:
    """Return why `plan`, the best of `searched`, was chosen."""
    best = searched.best
    assert best is not None
    assert best.simulation is not None
    shape = choices[best.candidate.shape]
    timing = pipeline(
        shape.work,
        request.model,
        shape.batch,
        best.candidate.pool,
        layout=plan.layout,
        schedule=plan.schedule,
        stages=plan.stages,
        speeds=best.candidate.pool.stage_speeds(plan.layout),
    )
    return Explanation(
        stages=tuple(_line(best, shape, s, stage) for s, stage in enumerate(plan.stages)),
        rivals=_rivals(request, searched, choices),
        lower_bound_s=best.step_s * min(1.0, searched.bound / best.score if best.score > 0 else 1.0),
        bubble_share=best.simulation.bubble_share,
        spare_nodes=tuple(sorted({node.node for node in request.nodes} - set(plan.nodes))),
        profile_source=_source(request, shape),
        timing=timing,
        network_share=_network_share(timing, best.step_s),
        spare_reason=_spare_reason(request, plan, searched),
        slow_nodes=_slow_nodes(request, plan, best),
        objective=request.spec.objective,
        value=searched.value,
        outlook=(request.outlook or UNSEEN) if request.spec.objective is Objective.PROGRESS else None,
        needed_bytes=needed_bytes(request, plan),
        moved_bytes=moved_bytes(request, plan) if request.held else None,
    )


def spread(why: Explanation) -> Spread | None:
    """Return how the predicted step varies by what the profile saw vary; None where that is nothing."""
    if why.timing is None or not why.timing.has_jitter:
        return None
    return quantiles(why.timing, range(SPREAD_SEEDS))


def _network_share(timing: Pipeline, step_s: float) -> float:
    """Return the share of the step that would go if messages and reductions took no time."""
    free = replace(
        timing,
        stages=tuple(replace(stage, reduction_s=0.0) for stage in timing.stages),
        boundaries=tuple(Boundary(serial_s=0.0, latency_s=0.0) for _ in timing.boundaries),
        agreement_s=0.0,
        interfaces=(),
    )
    return max(0.0, 1 - simulate(free).step_s / step_s) if step_s > 0 else 0.0


def _spare_reason(request: PlanRequest, plan: Plan, searched: Searched) -> str:
    """Return why the nodes that are left idle are, or an empty string."""
    best, used = searched.best, set(plan.nodes)
    left = [node for node in request.nodes if node.node not in used]
    if best is None or not left:
        return ""
    size_ = plan.layout.world_size
    larger = [one for one in searched.others if one.candidate.layout.world_size > size_]
    others = sorted({node.device_kind for node in left} - {request.profile.device_kind} - {""})
    kinds = f"; of kind {', '.join(others)}, not the job's" if others else ""
    ours = f"{plan.layout} on {size_} slots"
    if not larger or isinf(larger[0].step_s):
        return f"no layout on more than {size_} slots is possible or worth a look{kinds}"
    rival = larger[0]
    worse = _worse_by(best, rival)
    more = f"{rival.candidate.layout} on {rival.candidate.layout.world_size}"
    words = WORDS[request.spec.objective]
    if worse < 1e-9:
        return f"{ours} is as {words.good} as {more}{kinds}"
    return f"{ours} beats {more}, {'' if rival.simulation else 'at best '}{worse:.1%} {words.worse}{kinds}"


def _slow_nodes(request: PlanRequest, plan: Plan, best: Scored) -> tuple[str, ...]:
    """Return what the plan makes of the nodes that are slower than the fastest, like ones together."""
    fastest = max(node.speed for node in request.nodes)
    slow = sorted((node for node in request.nodes if node.speed < fastest), key=lambda node: node.node)
    if not slow:
        return ()
    speeds = best.candidate.pool.stage_speeds(plan.layout)
    held: dict[str, set[int]] = {}
    for rank, slot in enumerate(plan.placement):
        held.setdefault(slot.node, set()).add(plan.layout.stage_of(rank))
    alike: dict[tuple[float, str], list[str]] = {}
    for node in slow:
        if node.node not in held:
            fate = "left out"
        elif len(set(speeds)) == 1:
            fate = f"every stage is taken to be {speeds[0]:g} times as fast"
        else:
            stages = sorted(held[node.node])
            fate = f"on stage{'s' * (len(stages) > 1)} {', '.join(map(str, stages))}, cut for that speed"
        alike.setdefault((node.speed / fastest, fate), []).append(node.node)
    return tuple(
        f"{', '.join(names)} ({share:.0%} of the fastest): {fate}" for (share, fate), names in alike.items()
    )


def _line(best: Scored, shape: Shape, index: int, stage: Stage) -> StageLine:
    candidate = best.candidate
    work = at_speed(shape.work, candidate.pool.stage_speeds(candidate.layout)[index])
    backward_s = work.backward_under(candidate.schedule)
    resident = kept(
        shape.batch,
        candidate.schedule,
        layout=candidate.layout,
        stages_left=candidate.layout.stages - index,
        num_micro=candidate.num_micro,
        in_flight=stage.in_flight,
    )
    return StageLine(
        stage=index,
        first=stage.first,
        last=stage.last,
        recompute=stage.recompute,
        forward_s=float(work.forward_s[stage.last] - work.forward_s[stage.first]),
        backward_s=float(backward_s[stage.last] - backward_s[stage.first]),
        memory_bytes=int(peak_bytes(work, stage.first, stage.last, resident, recompute=stage.recompute)),
    )


def _rivals(request: PlanRequest, searched: Searched, choices: Sequence[Shape]) -> tuple[Rival, ...]:
    """Return the closest losers and, at the end, a few that do not fit.

    One line per layout and schedule; where the bound was enough, one per layout.
    """
    close: dict[tuple[str, str, int], Rival] = {}
    unfit: dict[tuple[str, str, int], Rival] = {}
    best, words = searched.best, WORDS[request.spec.objective]
    assert best is not None
    for other in searched.others:
        rival = _rival(best, other, choices, words)
        schedule = rival.schedule if other.simulation else ""
        name = (rival.layout, schedule, rival.micro_batch_size)
        if name not in close:
            (unfit if isinf(other.step_s) else close).setdefault(name, rival)
    tail = list(unfit.values())[:UNFIT_MAX]
    return (*list(close.values())[: RIVALS_MAX - len(tail)], *tail)


def _rival(best: Scored, other: Scored, choices: Sequence[Shape], words: Words) -> Rival:
    return Rival(
        layout=str(other.candidate.layout),
        schedule=other.candidate.schedule.value,
        micro_batch_size=choices[other.candidate.shape].batch.micro_batch_size,
        predicted_step_s=other.step_s,
        reason=_reason(best, other, words),
    )


def _reason(best: Scored, other: Scored, words: Words) -> str:
    if isinf(other.step_s):
        return f"no cut fits slots of {size(other.candidate.pool.memory_bytes)}"
    worse = f"{_worse_by(best, other):.1%}"
    if other.simulation is None:
        return f"cannot be {words.better}: its lower bound is {worse} above the chosen plan"
    if other.rank[0] > best.rank[0]:
        return f"simulated {worse} {words.worse}"
    return f"as {words.good}, but needs more nodes, stages, replicas or memory"


def _worse_by(best: Scored, other: Scored) -> float:
    return other.score / best.score - 1 if best.score > 0 else 0.0


def _source(request: PlanRequest, shape: Shape) -> str:
    work = shape.work
    fitted = f", fitted to {by}" if (by := request.profile.refreshed_by) else ""
    source = f"{request.profile.measured_on}{fitted}, micro-batches of {work.measured_size}"
    if work.measured_size == work.micro_batch_size:
        return source
    return f"{source}, scaled to {work.micro_batch_size}"
