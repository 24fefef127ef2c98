"""The best step by simulating everything there is, for small requests with memory for all of it."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import combinations, pairwise, permutations

from varuna_manager.planner import PlanRequest
from varuna_manager.planner.candidates import SCHEDULES, shapes
from varuna_manager.planner.pipeline import pipeline
from varuna_manager.planner.pools import pools
from varuna_manager.planner.simulate import simulate
from varuna_runtime.spec.layout import Layout, Stage


def best_s(asked: PlanRequest) -> float:
    """Return the best step over every layout, cut and schedule."""
    return min(every_cut_s(asked, layout) for layout in layouts(asked))


def layouts(asked: PlanRequest) -> Iterator[Layout]:
    """Yield every layout of the only batch shape on the only pool."""
    (shape,), (pool,) = shapes(asked), pools(asked.nodes, asked.spec.nodes.max)
    num_slots, virtual = pool.num_slots, shape.batch.virtual_replicas
    for stages in range(1, min(len(asked.model.segments), num_slots) + 1):
        for replicas in range(1, min(num_slots // stages, virtual) + 1):
            yield Layout(stages=stages, replicas=replicas)


def best_placed_s(asked: PlanRequest) -> float:
    """Return the best step over every layout, cut, schedule and placement of nodes of one slot each."""
    speeds = [node.speed for node in asked.nodes]
    equal = replace(asked, nodes=tuple(replace(node, speed=1.0) for node in asked.nodes))
    return min(
        every_cut_s(equal, layout, of_stages)
        for layout in layouts(equal)
        for of_stages in sorted(
            {
                tuple(min(placed[stage :: layout.stages]) for stage in range(layout.stages))
                for placed in permutations(speeds, layout.world_size)
            }
        )
    )


def every_cut_s(asked: PlanRequest, layout: Layout, speeds: tuple[float, ...] = ()) -> float:
    """Return the best step of a layout over every cut and schedule, with stages of these speeds."""
    (shape,), (pool,) = shapes(asked), pools(asked.nodes, asked.spec.nodes.max)
    last = len(asked.model.segments)
    return min(
        simulate(
            pipeline(
                shape.work,
                asked.model,
                shape.batch,
                pool,
                layout=layout,
                schedule=schedule,
                speeds=speeds,
                stages=tuple(Stage(first=a, last=b, recompute=False) for a, b in pairwise((0, *inner, last))),
            )
        ).step_s
        for inner in combinations(range(1, last), layout.stages - 1)
        for schedule in SCHEDULES
    )
