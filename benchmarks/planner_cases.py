"""The cases of `benchmarks.planner`: speed, bounds, brute force, gaps, simulator."""

import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from random import Random

from benchmarks.measure import Case, Claim, Row, Spread
from benchmarks.options import Options
from tests.support import every_cut
from tests.support.pipelines import random_pipeline, uniform
from tests.support.planning import job, nodes, profile, request, segment
from varuna_manager.planner import PlanRequest, plan
from varuna_manager.planner.bounds import SLACK, pipeline_bound_s
from varuna_manager.planner.compiled import ends
from varuna_manager.planner.event_loop import run
from varuna_manager.planner.groups import alone
from varuna_manager.planner.simulate import simulate
from varuna_runtime.spec.layout import Plan, ScheduleKind
from varuna_runtime.spec.profile import LinkCost, SegmentCost, SegmentProfile

COLD = """
import time
started_s = time.perf_counter()
from benchmarks.planner_cases import large
from varuna_manager.planner import plan
asked = large({nodes}, 8)
plan(asked)
print(time.perf_counter() - started_s)
"""

ORIGINAL_S = 0.613
"""The original tool's simulation of 64 stages and 512 micro-batches, as its setup builds it."""


def large(num_nodes: int, slots: int) -> PlanRequest:
    """Return 96 segments, five micro-batch sizes and 8,192 samples a step on many slots."""
    costs = [segment(forward_s=0.013 if i % 5 == 0 else 0.01, param_bytes=2**24) for i in range(96)]
    sizes = (1, 2, 4, 8, 16)
    measured = replace(
        profile(costs),
        by_micro_batch=tuple(
            SegmentProfile(micro_batch_size=n, segments=tuple(_at(cost, n) for cost in costs)) for n in sizes
        ),
        same_node=LinkCost(latency_s=2e-5, bandwidth_bps=1e11),
    )
    spec = job(batch_size=8192, micro_batch_size="auto", nodes={"max": num_nodes})
    return request(spec, costs, nodes(num_nodes, slots=slots), measured=measured)


def speed(options: Options) -> Case:
    """Time plans over all candidates, from a cold import and warm."""
    case = Case(
        name="speed",
        title="all candidates",
        settings="96 segments, 5 micro-batch sizes, batch 8,192; warm: with a node less each time",
    )
    limits = {128: (1.0, 0.1), 1250: (10.0, 10.0)}
    for num_nodes, (cold_limit_s, warm_limit_s) in limits.items():
        rounds = options.rounds(5 if num_nodes < 1000 else 2)
        asked = large(num_nodes, 8)
        cold = Spread.of([_cold_s(num_nodes) for _ in range(rounds)])
        fewer = [replace(asked, nodes=asked.nodes[:-lost]) for lost in range(1, rounds + 2)]
        for one in (asked, fewer[0]):  # the first two load what simulates
            plan(one)
        warm = Spread.of([_seconds(partial(plan, one)) for one in fewer[1:]])
        for name, spread, limit_s in (("cold", cold, cold_limit_s), ("warm", warm, warm_limit_s)):
            text = f"{num_nodes * 8} slots, {name}, seconds"
            case.rows.append(Row(name=text, step_s=spread))
            case.claims.append(Claim(text=text, value=spread, target=limit_s, at_most=True))
            options.say(f"{text}: {spread.median:.3f}")
    return case


def bounds(options: Options) -> Case:
    """Count simulations faster than their bound."""
    count = 1_000 if options.quick else 10_000
    asked = [random_pipeline(seed) for seed in range(count)]
    wrong = sum(simulate(one).step_s < pipeline_bound_s(one) * (1 - SLACK) for one in asked)
    case = Case(name="bounds", title="lower bound of known cuts", settings=f"{count} random candidates")
    case.claims.append(Claim(text="violations", value=Spread.of([float(wrong)]), target=0.0, at_most=True))
    return case


def brute_force(options: Options) -> Case:
    """Compare plans with the best of every cut, layout and schedule; the bound must be below that."""
    over, wrong = [], 0
    for seed in range(5 if options.quick else 40):
        asked = small(seed)
        answer = plan(asked)
        assert isinstance(answer.outcome, Plan)
        assert answer.explanation is not None
        best_s = every_cut.best_s(asked)
        over.append(answer.outcome.predicted_step_s / best_s - 1)
        wrong += answer.explanation.lower_bound_s > best_s * (1 + SLACK)
    case = Case(name="brute", title="every cut, layout and schedule", settings=f"{len(over)} small requests")
    case.claims += [
        Claim(text="plan over the optimum", value=Spread.of(over), target=0.01, at_most=True),
        Claim(text="largest of these", value=Spread.of([max(over)]), target=0.05, at_most=True),
        Claim(text="bounds above the optimum", value=Spread.of([float(wrong)]), target=0.0, at_most=True),
    ]
    return case


def gaps(options: Options) -> Case:
    """Gap of chosen plans to the bound over all candidates, for few slots and for up to 1,024."""
    few = [small(1000 + seed, most_segments=16, most_nodes=16) for seed in range(10 if options.quick else 60)]
    full = large(128, 8)
    many = [replace(full, nodes=full.nodes[:n]) for n in range(128, 3, -25 if options.quick else -5)]
    case = Case(
        name="gap",
        title="chosen plan to the bound",
        settings=f"{len(few)} random requests; 32 to 1,024 slots, {len(many)} pools",
    )
    for text, every in (("random requests", few), ("up to 1,024 slots", many)):
        spread = Spread.of([_gap(one) for one in every])
        case.claims.append(Claim(text=f"gap, {text}", value=spread, target=0.01, at_most=True))
    return case


def _gap(asked: PlanRequest) -> float:
    answer = plan(asked)
    assert isinstance(answer.outcome, Plan)
    assert answer.explanation is not None
    return answer.outcome.predicted_step_s / answer.explanation.lower_bound_s - 1


def simulator(options: Options) -> Case:
    """Compiled against plain simulation in the same run, and against the original tool's published time."""
    case = Case(name="simulator", title="P=64, M=512", settings="one step, uniform stages, free links")
    limits = {ScheduleKind.EAGER: 500, ScheduleKind.WORK_CONSERVING: 100, ScheduleKind.ZERO_BUBBLE: 100}
    links = uniform(1).boundaries[:1] * 63
    for schedule, times in limits.items():
        asked = replace(uniform(512), stages=uniform(1).stages[:1] * 64, boundaries=links, schedule=schedule)
        timed = partial(ends, asked, alone(512))
        timed()  # compiles
        compiled_s = min(_seconds(timed) for _ in range(options.rounds(5)))
        plain_s = _seconds(partial(run, asked, alone(512)))
        ratios = {"plain / compiled": (plain_s, 10.0), "original tool / compiled": (ORIGINAL_S, float(times))}
        for text, (other_s, target) in ratios.items():
            value = Spread.of([other_s / compiled_s])
            case.claims.append(Claim(text=f"{schedule.value}: {text}", value=value, target=target))
        case.notes.append(f"{schedule.value}: {compiled_s * 1000:.2f} ms, plain {plain_s * 1000:.0f} ms")
    case.notes.append("the original tool as built, 1F1B, on another machine: 613 ms; repaired, -O3: 98 ms")
    return case


def small(seed: int, *, most_segments: int = 6, most_nodes: int = 5) -> PlanRequest:
    """Return a random request with memory for everything."""
    random = Random(seed)
    costs = [
        segment(
            forward_s=random.uniform(0.005, 0.05),
            backward_s=random.uniform(0.01, 0.1),
            output_bytes=random.randrange(2**22),
            param_bytes=random.randrange(4, 2**22),
        )
        for _ in range(random.randint(2, most_segments))
    ]
    link = LinkCost(latency_s=random.uniform(0, 2e-3), bandwidth_bps=random.choice([1e9, 1e10, 1e11]))
    spec = job(
        batch_size=random.choice([16, 64, 128]), micro_batch_size=2, virtual_replicas=4, nodes={"max": 16}
    )
    usable = nodes(random.randint(1, most_nodes), memory_bytes=2**40)
    return request(spec, costs, usable, measured=profile(costs, link=link))


def _at(cost: SegmentCost, size: int) -> SegmentCost:
    return replace(
        cost,
        forward_s=cost.forward_s * (0.2 + 0.8 * size),
        backward_s=cost.backward_s * (0.2 + 0.8 * size),
        saved_bytes=8 * cost.saved_bytes * size,
        output_bytes=2 * cost.output_bytes * size,
    )


def _cold_s(num_nodes: int) -> float:
    command = [sys.executable, "-c", COLD.format(nodes=num_nodes)]
    root = Path(__file__).parents[1]
    done = subprocess.run(command, capture_output=True, text=True, check=True, cwd=root)
    return float(done.stdout)


def _seconds(work: Callable[[], object]) -> float:
    started_s = time.perf_counter()
    work()
    return time.perf_counter() - started_s
