"""The search: lower bounds first, simulate only what can still win; exact over its candidates."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from heapq import heappop, heappush
from itertools import count, islice, product
from math import inf, isinf

import numpy as np

from varuna_manager.planner.bounds import SLACK, pipeline_bound_s
from varuna_manager.planner.candidates import (
    Candidate,
    Layouts,
    Shape,
    candidates,
    modest_layouts,
)
from varuna_manager.planner.grid import grid_of
from varuna_manager.planner.movement import moved_bytes, settled
from varuna_manager.planner.pipeline import Pipeline, most_whole, pipeline
from varuna_manager.planner.pools import SlotPool
from varuna_manager.planner.request import PlanRequest
from varuna_manager.planner.simulate import Simulation, simulate
from varuna_manager.planner.stages import WIDE_STEP, StageCutter, links, stage_cutter
from varuna_runtime.spec.layout import Layout, Plan, Stage

MOVED_MAX = 128
"""Stages times micro-batches up to which cuts are moved after the simulation: with more, the best cuts for
the bound simulate as its optimum, and what moves won in forty random plans was less than 0.01%."""
MOVED_GAP = 0.001
"""Gap between simulation and bound below which no cut is moved."""
NEAR = 0.005
"""Share of the score below which plans count as alike when one of them moves fewer bytes."""
OTHERS_MAX = 16  # of each sort that was not simulated, kept for the explanation


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """A candidate after its turn: `step_s` is simulated, or a bound, or infinity when it does not fit.

    `score` is what the job's objective makes of it, less being better.
    """

    candidate: Candidate
    step_s: float
    score: float
    stages: tuple[Stage, ...] | None
    simulation: Simulation | None

    @property
    def rank(self) -> tuple[float, tuple[int, ...]]:
        """Better first; scores that differ by rounding only are ties."""
        return (float(f"{self.score:.9g}"), self.candidate.preference)


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """`best` is None when nothing fits; `others` holds the closest of the rest, in order of score."""

    best: Scored | None
    others: tuple[Scored, ...]
    bound: float  # score that no candidate is below
    value: float  # of the best, in the units of the objective
    num_layouts: int
    num_simulated: int  # candidates, not simulations


def search(request: PlanRequest, choices: Sequence[Shape], found: Sequence[SlotPool]) -> Searched:
    """Return the best candidate by the job's objective and the fate of others; deterministic.

    `request` has usable nodes only. Layouts are looked at in order of their coarse bound, their candidates in
    order of a sharper one. The outcome does not depend on what is pruned: nothing is that could be better.
    """
    rows = Layouts(request, choices, found)
    waiting = _Waiting(request, choices, found, rows)
    best: Scored | None = None
    tried: list[Scored] = []
    bound = inf
    while (next_ := waiting.next(best.score if best else inf)) is not None:
        bound = min(bound, next_.score)
        scored = waiting.evaluator.score(next_.candidate)
        if scored.simulation is not None and (best is None or scored.rank < best.rank):
            best = scored
        tried.append(scored)
    if best is not None and request.held:
        best = _least_moving(request, choices, best, tried)
    others = [one for one in (*tried, *waiting.rest()) if one is not best]
    return Searched(
        best=best,
        others=tuple(sorted(others, key=lambda one: one.rank)),
        bound=bound,
        value=rows.value(best.score, request.spec.batch_size) if best else 0.0,
        num_layouts=len(rows),
        num_simulated=len(tried),
    )


def plan_of(request: PlanRequest, choices: Sequence[Shape], scored: Scored) -> Plan:
    """Return the plan of a candidate that fits, with its ranks where most of their state is."""
    candidate = scored.candidate
    assert scored.stages is not None
    plan = Plan(
        layout=candidate.layout,
        stages=scored.stages,
        schedule=candidate.schedule,
        batch=choices[candidate.shape].batch,
        placement=candidate.pool.placement(candidate.layout),
        predicted_step_s=scored.step_s,
    )
    return settled(request, plan)


def _least_moving(
    request: PlanRequest, choices: Sequence[Shape], best: Scored, tried: Iterable[Scored]
) -> Scored:
    """Return of those simulated that are nearly as good as the best the one that moves fewest bytes."""
    near = [
        one
        for one in tried
        if one.simulation is not None
        and one.score <= best.score * (1 + NEAR)
        and one.step_s <= best.step_s * (1 + NEAR)
    ]
    return min(near, key=lambda one: (moved_bytes(request, plan_of(request, choices, one)), one.rank))


def fits(request: PlanRequest, shape: Shape, found: Sequence[SlotPool]) -> bool:
    """Return whether any layout of the shape fits on the pools, which may have more than `request.nodes`."""
    likely = modest_layouts(request.spec, shape, found)
    if any(cutter.fits() for cutter, _ in _roomiest(request, shape, likely, found)):
        return True
    rows = Layouts(request, [shape], found)
    others = (rows.layout(row) for row in range(len(rows)) if not isinf(rows.sharper_s(row)))
    return any(cutter.fits() for cutter, _ in _roomiest(request, shape, others, found))


def least_memory_bytes(
    request: PlanRequest, choices: Sequence[Shape], found: Sequence[SlotPool]
) -> tuple[float, Candidate]:
    """Return the smallest slot memory at which some candidate would fit, with that candidate."""
    needs = (
        (cutter.least_memory_bytes(), replace(candidate, shape=index))
        for index, shape in enumerate(choices)
        for cutter, candidate in _roomiest(request, shape, modest_layouts(request.spec, shape, found), found)
    )
    return min(needs, key=lambda need: (need[0], need[1].preference))


def _roomiest(
    request: PlanRequest, shape: Shape, of: Iterable[Layout], found: Sequence[SlotPool]
) -> Iterator[tuple[StageCutter, Candidate]]:
    """Yield for each layout the candidate with most memory, by the schedule that needs least."""
    evaluator = _Evaluator(request, [shape])
    for layout in of:
        roomy = candidates(request.spec, [shape], found, shape=0, layout=layout)
        candidate = max(roomy, key=lambda one: (one.pool.memory_bytes, -one.preference[3]), default=None)
        if candidate is not None:
            yield evaluator.cutter(candidate), candidate


class _Waiting:
    """Layouts and candidates whose turn has not come, by bound; bounds get sharper as they come up."""

    def __init__(
        self, request: PlanRequest, choices: Sequence[Shape], found: Sequence[SlotPool], rows: Layouts
    ) -> None:
        self._request, self._choices, self._found, self._rows = request, choices, found, rows
        self._row = 0
        self._count = count()
        self._heap: list[tuple[float, tuple[int, ...], int, Scored | int]] = []  # an int is a row
        self._unfit: list[Scored] = []
        self.evaluator = _Evaluator(request, choices, rows.score_of)

    def next(self, best: float) -> Scored | None:
        """Return the candidate whose bound has the least score, if it can be as good as `best`."""
        while not isinf(least := min(self._coarse, self._least)) and least * (1 - SLACK) <= best:
            if self._coarse <= self._least:
                self._push(self._rows.sharper_score(self._row), (), self._row)
                self._row += 1
                continue
            item = heappop(self._heap)[-1]
            if isinstance(item, Scored):
                return item
            self._open(item)
        return None

    def rest(self) -> tuple[Scored, ...]:
        """Return the closest of those that never had a turn, and some that do not fit."""
        rows = range(self._row, len(self._rows))
        first_unfit = int(np.searchsorted(self._rows.score, inf))
        unfit = range(max(first_unfit, self._row), len(self._rows))
        waiting = (
            item if isinstance(item, Scored) else self._closed(item, self._rows.sharper_s(item))
            for _, _, _, item in sorted(self._heap, key=lambda entry: entry[:3])
        )
        closed = (self._closed(row, float(self._rows.bound_s[row])) for row in rows if row < first_unfit)
        never = (self._closed(row, inf) for row in unfit)
        return (
            *islice(waiting, OTHERS_MAX),
            *islice(closed, OTHERS_MAX),
            *self._unfit[:OTHERS_MAX],
            *islice(never, OTHERS_MAX),
        )

    @property
    def _coarse(self) -> float:
        return float(self._rows.score[self._row]) if self._row < len(self._rows) else inf

    @property
    def _least(self) -> float:
        return self._heap[0][0] if self._heap else inf

    def _push(self, bound: float, name: tuple[int, ...], item: Scored | int) -> None:
        if not isinf(bound):
            heappush(self._heap, (bound, name, next(self._count), item))
        elif len(self._unfit) < OTHERS_MAX:
            self._unfit.append(item if isinstance(item, Scored) else self._closed(item, inf))

    def _open(self, row: int) -> None:
        least_s = self._rows.sharper_s(row)
        for candidate in self._candidates(row):
            bounded = self._bounded(candidate, max(least_s, self.evaluator.cutter(candidate).bound_s))
            name = (*candidate.preference, -candidate.pool.unit_slots)
            self._push(bounded.score, name, bounded)

    def _closed(self, row: int, bound_s: float) -> Scored:
        return self._bounded(next(self._candidates(row)), bound_s)

    def _candidates(self, row: int) -> Iterator[Candidate]:
        shape, layout = self._rows.shape(row), self._rows.layout(row)
        return candidates(self._request.spec, self._choices, self._found, shape=shape, layout=layout)

    def _bounded(self, candidate: Candidate, bound_s: float) -> Scored:
        score = self._rows.score_of(candidate, bound_s)
        return Scored(candidate=candidate, step_s=bound_s, score=score, stages=None, simulation=None)


def _as_fast(_candidate: Candidate, step_s: float) -> float:
    return step_s


class _Evaluator:
    def __init__(
        self,
        request: PlanRequest,
        choices: Sequence[Shape],
        score_of: Callable[[Candidate, float], float] = _as_fast,
    ) -> None:
        self._request, self._shapes, self._score_of = request, choices, score_of

    def score(self, candidate: Candidate) -> Scored:
        """Return the candidate, simulated with the best cuts that were found."""
        cutter = self.cutter(candidate)
        stages = cutter.stages()
        assert stages is not None
        scored = self._simulated(candidate, stages)
        for _ in range(2):
            if not self._is_open(scored) or (wide := cutter.widened(stages)) is None:
                break
            scored = min(scored, self._simulated(candidate, wide), key=lambda one: one.step_s)
            # Once more, with the cuts for as many in flight as there turned out to be room for.
            stages = self.cutter(candidate, cutter.step_of(stages)).stages() or stages
        return self._with_cuts_moved(scored, cutter)

    def _is_open(self, scored: Scored) -> bool:
        return self.cutter(scored.candidate).bound_s * (1 + MOVED_GAP) < scored.step_s

    def _with_cuts_moved(self, scored: Scored, cutter: StageCutter) -> Scored:
        """Return it with one cut at a time moved by one segment as long as that is faster."""
        if scored.candidate.layout.stages * scored.candidate.num_micro > MOVED_MAX:
            return scored
        while self._is_open(scored):
            moved = (self._simulated(scored.candidate, stages) for stages in self._moved(scored, cutter))
            better = next((one for one in moved if one.step_s < scored.step_s * (1 - SLACK)), None)
            if better is None:
                break
            scored = better
        return scored

    def _moved(self, scored: Scored, cutter: StageCutter) -> Iterator[tuple[Stage, ...]]:
        """Yield the stages with one cut moved, but for those that cannot be faster."""
        assert scored.stages is not None
        cuts, is_wide = [stage.last for stage in scored.stages], scored.stages[0].in_flight > 0
        for at, by in product(range(len(cuts) - 1), (-1, 1)):
            stages = cutter.stages_at([*cuts[:at], cuts[at] + by, *cuts[at + 1 :]])
            if stages is not None and is_wide:
                stages = cutter.widened(stages) or stages
            if stages is None or pipeline_bound_s(self._timed(scored.candidate, stages)) > scored.step_s:
                continue
            yield stages

    def _simulated(self, candidate: Candidate, stages: tuple[Stage, ...]) -> Scored:
        simulation = simulate(self._timed(candidate, stages))
        score = self._score_of(candidate, simulation.step_s)
        return Scored(
            candidate=candidate, step_s=simulation.step_s, score=score, stages=stages, simulation=simulation
        )

    def _timed(self, candidate: Candidate, stages: tuple[Stage, ...]) -> Pipeline:
        shape = self._shapes[candidate.shape]
        return pipeline(
            shape.work,
            self._request.model,
            shape.batch,
            candidate.pool,
            layout=candidate.layout,
            schedule=candidate.schedule,
            stages=stages,
            speeds=candidate.pool.stage_speeds(candidate.layout),
        )

    def cutter(self, candidate: Candidate, step: float = WIDE_STEP) -> StageCutter:
        """Return the cutter of a candidate: the same on pools alike, and from plan to plan."""
        shape, pool = self._shapes[candidate.shape], candidate.pool
        speeds = pool.stage_speeds(candidate.layout) if pool.order else ()
        own = tuple(grid_of(shape.work, speed) for speed in speeds)
        return stage_cutter(
            grid_of(shape.work, pool.top_speed),
            shape.batch,
            layout=candidate.layout,
            schedule=candidate.schedule,
            num_micro=candidate.num_micro,
            whole_micro=most_whole(shape.batch, candidate.layout.replicas),
            memory_bytes=pool.memory_bytes,
            between=links(shape.work, pool, candidate.layout),
            step=step,
            own=own,
        )
