from collections.abc import Sequence
from dataclasses import replace
from math import inf
from random import Random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.every_cut import best_s, layouts
from tests.support.planning import FREE_LINK, KIND, UNEVEN, job, nodes, planned, profile, request, segment
from tests.support.planning_checks import check_invariants
from varuna_manager.planner import PlannableNode, PlanRequest, plan
from varuna_manager.planner.bounds import SLACK
from varuna_manager.planner.candidates import SCHEDULES, shapes
from varuna_manager.planner.pools import pools
from varuna_manager.planner.search import search
from varuna_runtime.spec.job import JobSpec, LayoutChoice, Nodes
from varuna_runtime.spec.layout import Layout, Plan, ScheduleKind
from varuna_runtime.spec.profile import LinkCost, SegmentCost


@st.composite
def requests(draw: st.DrawFn) -> PlanRequest:
    times = st.floats(1e-3, 1.0)
    sizes = st.integers(0, 2**22)
    costs = [
        SegmentCost(
            forward_s=draw(times),
            backward_s=draw(times),
            output_bytes=draw(sizes),
            saved_bytes=draw(sizes),
            param_bytes=draw(sizes),
            optimizer_bytes=draw(sizes),
        )
        for _ in range(draw(st.integers(1, 6)))
    ]
    link = LinkCost(latency_s=draw(st.floats(0, 0.1)), bandwidth_bps=draw(st.floats(1e6, 1e10)))
    auto = draw(st.booleans())
    spec = job(
        batch_size=draw(st.integers(8, 40)),
        micro_batch_size="auto" if auto else draw(st.integers(1, 8)),
        nodes={"min": 1, "max": draw(st.integers(1, 8))},
        schedule=draw(st.sampled_from(["auto", "1f1b", "gpipe"])),
    )
    memory = draw(st.integers(2**23, 2**27))
    slots = draw(st.integers(1, 4))
    usable = nodes(draw(st.integers(1, 8)), slots=slots, memory_bytes=memory)
    return request(spec, costs, usable, measured=profile(costs, sizes=(1, 2, 4, 8), link=link))


@given(requests())
@settings(max_examples=150, deadline=None, derandomize=True)
def test_every_plan_is_a_partition_fits_memory_and_uses_no_slot_twice(asked: PlanRequest) -> None:
    answer = plan(asked)
    if isinstance(answer.outcome, Plan):
        check_invariants(asked, answer.outcome)
        assert answer.explanation is not None
        assert 0 < answer.explanation.lower_bound_s <= answer.outcome.predicted_step_s
    else:
        assert answer.outcome.reason
        assert answer.outcome.change


def step_s(asked: PlanRequest) -> float:
    answer = plan(asked).outcome
    return answer.predicted_step_s if isinstance(answer, Plan) else inf


joined = st.tuples(st.integers(1, 4), st.integers(2**23, 2**27), st.sampled_from([0.5, 1.0, 1.5]))


@given(requests(), st.lists(joined, min_size=1, max_size=4))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_one_more_node_never_makes_the_plan_slower(
    asked: PlanRequest, joining: Sequence[tuple[int, int, float]]
) -> None:
    spec = asked.spec.model_copy(update={"nodes": Nodes(min=1, max=8)})
    grown = replace(asked, spec=spec, batch=shapes(asked)[0].batch)
    before = step_s(grown)
    for i, (slots, memory, speed) in enumerate(joining):
        new = PlannableNode(node=f"x{i}", slots=slots, memory_bytes=memory, device_kind=KIND, speed=speed)
        grown = replace(grown, nodes=(*grown.nodes, new))
        now = step_s(grown)
        assert now <= before * (1 + 1e-8)
        before = now


def test_a_large_node_whose_slots_share_its_interface_displaces_no_small_ones() -> None:
    costs = [segment(forward_s=1.0, backward_s=1.0, output_bytes=n, param_bytes=0) for n in (1000, 0)]
    link = LinkCost(latency_s=0.0, bandwidth_bps=1e6)
    fast = replace(nodes(1, slots=2)[0], node="fast", speed=1.5)
    asked = request(
        job(batch_size=17, layout={"stages": 2, "replicas": 2}, micro_batch_size=8),
        costs,
        (*nodes(2), fast),
        measured=profile(costs, sizes=(1, 8), link=link),
    )
    grown = replace(asked, nodes=(*asked.nodes, replace(fast, node="large", speed=1.0)))
    assert step_s(grown) == step_s(asked)


@given(requests())
@settings(max_examples=40, deadline=None, derandomize=True)
def test_pruning_by_bounds_loses_nothing(asked: PlanRequest) -> None:
    limit = min(5, asked.spec.nodes.max)
    spec = asked.spec.model_copy(update={"schedule": "auto"})
    batch = shapes(asked)[0].batch
    single = replace(asked, spec=spec, nodes=nodes(limit, memory_bytes=2**26), batch=batch)
    pinned = [
        step_s(replace(single, spec=pin(single, layout, schedule)))
        for layout in layouts(single)
        for schedule in SCHEDULES
    ]
    assert step_s(single) == pytest.approx(min(pinned), rel=1e-8)


@pytest.mark.parametrize("count", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("batch_size", [8, 13, 64])
def test_the_chosen_cuts_are_within_two_percent_of_the_best_of_all(count: int, batch_size: int) -> None:
    spec = job(batch_size=batch_size, virtual_replicas=4, nodes={"max": 5})
    asked = request(spec, UNEVEN, nodes(count), measured=profile(UNEVEN, link=FREE_LINK))
    best = best_s(asked)
    made, why = planned(asked)
    assert made.predicted_step_s <= best * 1.02
    assert why.lower_bound_s <= best * (1 + SLACK)


@given(requests(), st.randoms(use_true_random=False))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_the_order_of_the_nodes_does_not_matter(asked: PlanRequest, random: Random) -> None:
    shuffled = list(asked.nodes)
    random.shuffle(shuffled)
    assert plan(replace(asked, nodes=tuple(shuffled))) == plan(asked)


@given(requests())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_no_cut_of_any_layout_is_faster_than_the_bound(asked: PlanRequest) -> None:
    spec = asked.spec.model_copy(update={"schedule": "auto", "nodes": Nodes(min=1, max=4)})
    batch = shapes(asked)[0].batch
    single = replace(asked, spec=spec, nodes=nodes(4, memory_bytes=2**40), batch=batch)
    _, why = planned(single)
    best = best_s(single)
    assert why.lower_bound_s <= best * (1 + SLACK)


def pin(asked: PlanRequest, layout: Layout, schedule: ScheduleKind) -> JobSpec:
    choice = LayoutChoice(stages=layout.stages, replicas=layout.replicas)
    return asked.spec.model_copy(update={"layout": choice, "schedule": schedule})


def test_a_hundred_nodes_and_48_segments_need_few_simulations() -> None:
    costs = [segment(param_bytes=2**26, saved_bytes=2**28) for _ in range(48)]
    spec = job(batch_size=1024, micro_batch_size="auto", nodes={"max": 100})
    asked = request(spec, costs, nodes(100), measured=profile(costs, sizes=(1, 2, 4, 8)))
    searched = search(asked, shapes(asked), pools(asked.nodes, 100))
    assert searched.best is not None
    assert searched.num_layouts > 100
    assert searched.num_simulated < 40
    assert searched.bound <= searched.best.score == searched.best.step_s
