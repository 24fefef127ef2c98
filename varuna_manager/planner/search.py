"""The search: lower bounds first, simulate only what can still win; exact over its candidates."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

from varuna_manager.planner.bounds import SLACK, pipeline_bound_s
from varuna_manager.planner.candidates import Candidate, Shape, candidates
from varuna_manager.planner.pipeline import pipeline
from varuna_manager.planner.pools import SlotPool
from varuna_manager.planner.request import PlanRequest
from varuna_manager.planner.simulate import Simulation, simulate
from varuna_manager.planner.stages import StageCutter
from varuna_runtime.spec.layout import Stage


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A candidate after its turn: `step_s` is simulated, or a bound, or infinity when it does not fit."""

    candidate: Candidate
    step_s: float
    stages: tuple[Stage, ...] | None
    simulation: Simulation | None

    @property
    def rank(self) -> tuple[float, tuple[int, ...]]:
        """Faster first; times that differ by rounding only are ties."""
        return (float(f"{self.step_s:.9g}"), self.candidate.preference)


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """`best` is None when nothing fits; `others` holds the rest in order of `step_s`."""

    best: Scored | None
    others: tuple[Scored, ...]
    bound_s: float  # proven for every candidate


def search(request: PlanRequest, choices: Sequence[Shape], found: Sequence[SlotPool]) -> Searched:
    """Return the fastest candidate and the fate of all others; deterministic."""
    evaluator = _Evaluator(request, choices)
    ranked = candidates(request.spec, choices, found)
    best: Scored | None = None
    fates: list[Scored] = []
    for candidate in ranked:
        scored = evaluator.score(candidate, best.step_s if best else inf)
        if scored.simulation is not None and (best is None or scored.rank < best.rank):
            best = scored
        fates.append(scored)
    others = sorted((one for one in fates if one is not best), key=lambda one: one.rank)
    bound_s = min((candidate.bound_s for candidate in ranked), default=inf)
    return Searched(best=best, others=tuple(others), bound_s=bound_s)


def fits(request: PlanRequest, shape: Shape, found: Sequence[SlotPool]) -> bool:
    """Return whether any layout of the shape fits on the pools."""
    evaluator = _Evaluator(request, (shape,))
    deepest_first = reversed(candidates(request.spec, (shape,), found))
    return any(evaluator.cutter(one).stages(one.layout.stages) is not None for one in deepest_first)


def least_memory_bytes(
    request: PlanRequest, choices: Sequence[Shape], found: Sequence[SlotPool]
) -> tuple[float, Candidate]:
    """Return the smallest slot memory at which some candidate would fit, with that candidate."""
    evaluator = _Evaluator(request, choices)
    needs = (
        (evaluator.cutter(one).least_memory_bytes(one.layout.stages), one)
        for one in candidates(request.spec, choices, found)
    )
    return min(needs, key=lambda need: (need[0], need[1].preference))


class _Evaluator:
    def __init__(self, request: PlanRequest, choices: Sequence[Shape]) -> None:
        self._request, self._shapes = request, choices
        self._cutters: dict[tuple[object, ...], StageCutter] = {}

    def score(self, candidate: Candidate, best_s: float) -> Scored:
        if candidate.bound_s * (1 - SLACK) > best_s:
            return Scored(candidate=candidate, step_s=candidate.bound_s, stages=None, simulation=None)
        stages = self.cutter(candidate).stages(candidate.layout.stages)
        if stages is None:
            return Scored(candidate=candidate, step_s=inf, stages=None, simulation=None)
        shape = self._shapes[candidate.shape]
        timing = pipeline(
            shape.work,
            self._request.model,
            shape.batch,
            candidate.pool,
            layout=candidate.layout,
            schedule=candidate.schedule,
            stages=stages,
        )
        bound_s = pipeline_bound_s(timing)
        if bound_s * (1 - SLACK) > best_s:
            return Scored(candidate=candidate, step_s=bound_s, stages=stages, simulation=None)
        simulation = simulate(timing)
        return Scored(candidate=candidate, step_s=simulation.step_s, stages=stages, simulation=simulation)

    def cutter(self, candidate: Candidate) -> StageCutter:
        """Return the cutter that all layouts of equal D, schedule, shape and memory share."""
        shape, layout = self._shapes[candidate.shape], candidate.layout
        key = (candidate.shape, layout.replicas, candidate.schedule, candidate.pool.memory_bytes)
        if key not in self._cutters:
            self._cutters[key] = StageCutter(
                shape.work,
                shape.batch,
                replicas=layout.replicas,
                schedule=candidate.schedule,
                num_micro=candidate.num_micro,
                memory_bytes=candidate.pool.memory_bytes,
            )
        return self._cutters[key]
