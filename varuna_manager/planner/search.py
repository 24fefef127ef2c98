"""The search: lower bounds first, simulate only what can still win; exact over its candidates."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import inf

from varuna_manager.planner.bounds import SLACK, pipeline_bound_s
from varuna_manager.planner.candidates import Candidate, Shape, candidates
from varuna_manager.planner.pipeline import Pipeline, pipeline
from varuna_manager.planner.pools import SlotPool
from varuna_manager.planner.request import PlanRequest
from varuna_manager.planner.simulate import Simulation, simulate
from varuna_manager.planner.stages import StageCutter
from varuna_runtime.spec.layout import ScheduleKind, Stage

MOVED_MAX = 128
"""Stages times micro-batches up to which cuts are moved after the simulation; with more, they matter less."""
TIMINGS_MAX = 64  # schedules of one layout come within fewer candidates than that
MOVED_GAP = 0.01
"""Gap between simulation and bound below which no cut is moved."""


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
        self._timings: dict[tuple[object, ...], Pipeline] = {}

    def score(self, candidate: Candidate, best_s: float) -> Scored:
        if candidate.bound_s * (1 - SLACK) > best_s:
            return Scored(candidate=candidate, step_s=candidate.bound_s, stages=None, simulation=None)
        stages = self.cutter(candidate).stages(candidate.layout.stages)
        if stages is None:
            return Scored(candidate=candidate, step_s=inf, stages=None, simulation=None)
        scored, bound_s = self._scored(candidate, stages, best_s)
        is_small = candidate.layout.stages * candidate.num_micro <= MOVED_MAX
        if scored.simulation is None or not is_small:
            return scored
        while bound_s * (1 + MOVED_GAP) < scored.step_s:
            better = self._moved(scored, min(best_s, scored.step_s))
            if better is None:
                break
            scored = better
        return scored

    def _moved(self, scored: Scored, best_s: float) -> Scored | None:
        """Return the first that is faster with one cut moved by one segment."""
        assert scored.stages is not None
        cuts = [stage.last for stage in scored.stages]
        for at, by in product(range(len(cuts) - 1), (-1, 1)):
            moved = [*cuts[:at], cuts[at] + by, *cuts[at + 1 :]]
            stages = self.cutter(scored.candidate).stages_at(moved)
            if stages is None:
                continue
            found, _ = self._scored(scored.candidate, stages, best_s)
            if found.simulation is not None and found.step_s < scored.step_s * (1 - SLACK):
                return found
        return None

    def _scored(self, candidate: Candidate, stages: tuple[Stage, ...], best_s: float) -> tuple[Scored, float]:
        """Return the candidate with these stages, simulated if it can still win, and its lower bound."""
        timing = self._timed(candidate, stages)
        bound_s = pipeline_bound_s(timing)
        simulation = None if bound_s * (1 - SLACK) > best_s else simulate(timing)
        step_s = bound_s if simulation is None else simulation.step_s
        return Scored(candidate=candidate, step_s=step_s, stages=stages, simulation=simulation), bound_s

    def _timed(self, candidate: Candidate, stages: tuple[Stage, ...]) -> Pipeline:
        """Return the candidate's times; schedules that are cut alike have them in common."""
        pool = candidate.pool
        key = candidate.shape, candidate.layout, pool.unit_slots, pool.memory_bytes, stages
        if key not in self._timings:
            if len(self._timings) >= TIMINGS_MAX:
                self._timings.clear()
            shape = self._shapes[candidate.shape]
            self._timings[key] = pipeline(
                shape.work,
                self._request.model,
                shape.batch,
                pool,
                layout=candidate.layout,
                schedule=candidate.schedule,
                stages=stages,
            )
        return replace(self._timings[key], schedule=candidate.schedule)

    def cutter(self, candidate: Candidate) -> StageCutter:
        """Return the cutter that all layouts of equal D, schedule, shape and memory share."""
        shape, layout = self._shapes[candidate.shape], candidate.layout
        depth = layout.stages if candidate.schedule is ScheduleKind.ZERO_BUBBLE else 0
        key = (candidate.shape, layout.replicas, depth, candidate.schedule, candidate.pool.memory_bytes)
        if key not in self._cutters:
            self._cutters[key] = StageCutter(
                shape.work,
                shape.batch,
                layout=layout,
                schedule=candidate.schedule,
                num_micro=candidate.num_micro,
                memory_bytes=candidate.pool.memory_bytes,
            )
        return self._cutters[key]
