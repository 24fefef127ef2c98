from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.planning import (
    FREE_LINK,
    GIB,
    KIND,
    UNEVEN,
    job,
    nodes,
    planned,
    profile,
    refused,
    request,
    segment,
)
from tests.unit.planner.test_search import layouts, pin, requests
from varuna_manager.planner import PlannableNode, PlanRequest, plan
from varuna_manager.planner.objective import Cost, Objective, Progress, Throughput, Use
from varuna_manager.planner.outlook import NUM_DRAWS, Draws, LossRate, Outlook
from varuna_runtime.spec.job import Objective as Kind
from varuna_runtime.spec.layout import Infeasible, Plan

HOUR_S = 3600.0
NO_LOSSES = Outlook(losses=LossRate(per_node_s=0.0))
BAD = Outlook(
    losses=LossRate(per_node_s=2 / HOUR_S, burst_weights=(3.0, 1.0, 1.0)), morph_s=5.0, replay_s=3.0
)


def use(num_nodes: Sequence[int], price: float = 1.0) -> Use:
    return Use(num_nodes=np.array(num_nodes), dollars_per_hour=price * np.array(num_nodes, dtype=float))


def rates(count: int) -> np.ndarray:
    return np.array([0.0, *(float(n**0.8) for n in range(1, count + 1))])


OBJECTIVES = [Throughput(), Cost(), Progress(BAD, num_nodes=100, steps_per_s=rates(100))]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_no_score_falls_with_a_longer_step_more_nodes_or_a_higher_price(objective: Objective) -> None:
    step_s = np.geomspace(1e-3, 1e3, 100)
    many = np.array(list(range(1, 101)))
    same_nodes = objective.scores(step_s, use([7] * 100))
    same_step = objective.scores(np.full(100, 0.1), use(many))
    dearer = objective.scores(np.full(100, 0.1), Use(num_nodes=np.full(100, 7), dollars_per_hour=many * 1.0))
    for scores in (same_nodes, same_step, dearer):
        assert all(a <= b * (1 + 1e-12) for a, b in pairwise(scores))
    assert same_nodes[0] < same_nodes[-1]


@pytest.mark.parametrize("objective", OBJECTIVES)
def test_what_does_not_fit_has_no_finite_score_and_all_else_has(objective: Objective) -> None:
    scores = objective.scores(np.array([1e-9, 1e9, np.inf]), use([1, 100, 1]))
    assert np.isfinite(scores).tolist() == [True, True, False]


outlooks = st.builds(
    Outlook,
    losses=st.builds(
        LossRate,
        per_node_s=st.floats(0.0, 0.1),
        burst_weights=st.lists(st.floats(0.1, 5.0), min_size=1, max_size=5).map(tuple),
    ),
    horizon_s=st.floats(10.0, 1e5),
    morph_s=st.floats(0.0, 100.0),
    replay_s=st.floats(0.0, 100.0),
    notice_s=st.floats(0.0, 200.0),
)


def progress(outlook: Outlook, num_nodes: int, num_used: int, step_s: float) -> float:
    """Return the steps expected per second."""
    objective = Progress(outlook, num_nodes=num_nodes, steps_per_s=np.maximum(rates(num_nodes), 1 / step_s))
    return 1 / float(objective.scores(np.array([step_s]), use([num_used]))[0])


@given(outlooks, st.floats(1.0, 10.0), st.integers(1, 40), st.data())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_more_loss_never_raises_the_expected_progress_nor_is_it_more_than_without_any(
    outlook: Outlook, times: float, num_nodes: int, data: st.DataObject
) -> None:
    num_used = data.draw(st.integers(1, num_nodes))
    step_s = data.draw(st.floats(1e-3, 100.0))
    losses = replace(outlook.losses, per_node_s=outlook.losses.per_node_s * times)
    worse = progress(replace(outlook, losses=losses), num_nodes, num_used, step_s)
    found = progress(outlook, num_nodes, num_used, step_s)
    assert worse <= found * (1 + 1e-9)
    assert found <= 1 / step_s * (1 + 1e-9)


@given(requests())
@settings(max_examples=60, deadline=None, derandomize=True)
def test_without_losses_progress_chooses_as_throughput_does(asked: PlanRequest) -> None:
    spec = asked.spec.model_copy(update={"objective": Kind.PROGRESS})
    fastest, found = plan(asked), plan(replace(asked, spec=spec, outlook=NO_LOSSES))
    assert found.outcome == fastest.outcome
    if isinstance(found.outcome, Plan):
        assert fastest.explanation is not None
        assert found.explanation is not None
        assert found.explanation.value == pytest.approx(fastest.explanation.value * NO_LOSSES.horizon_s)


def test_a_job_by_progress_that_does_not_fit_is_told_how_many_more_nodes_would_do() -> None:
    costs = [segment(param_bytes=2**26) for _ in range(6)]
    spec = job(objective="progress", nodes={"max": 8})
    asked = request(spec, costs, nodes(1, memory_bytes=2**30), measured=profile(costs))
    assert refused(asked).change.startswith("add 5 nodes like n000")


@given(requests(), st.lists(st.floats(0.1, 9.0), min_size=8, max_size=8))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_no_layout_is_cheaper_a_sample_than_the_plan_by_cost(
    asked: PlanRequest, prices: Sequence[float]
) -> None:
    priced = tuple(replace(n, slots=1, price_per_hour=p) for n, p in zip(asked.nodes, prices, strict=False))
    spec = asked.spec.model_copy(update={"objective": Kind.COST, "schedule": "1f1b"})
    single = replace(asked, spec=spec, nodes=priced)
    answer = plan(single)
    if isinstance(answer.outcome, Infeasible):
        return
    single = replace(single, batch=answer.outcome.batch)
    paid = [dollars_a_step(single, p) for p in every_plan(single)]
    assert dollars_a_step(single, answer.outcome) == pytest.approx(min(paid), rel=1e-8)
    assert answer.explanation is not None
    assert answer.explanation.value == pytest.approx(spec.batch_size / min(paid), rel=1e-8)


def every_plan(asked: PlanRequest) -> list[Plan]:
    answers = (
        plan(replace(asked, spec=pin(asked, layout, asked.spec.schedule)))  # type: ignore[arg-type]
        for layout in layouts(asked)
        if layout.world_size <= asked.spec.nodes.max
    )
    return [answer.outcome for answer in answers if isinstance(answer.outcome, Plan)]


def dollars_a_step(asked: PlanRequest, made: Plan) -> float:
    paid = {node.node: node.paid_per_hour for node in asked.nodes}
    return made.predicted_step_s * sum(paid[name] for name in made.nodes) / 3600


def test_a_node_that_adds_less_than_its_losses_take_is_left_as_a_spare() -> None:
    costs = [segment(param_bytes=2**24) for _ in range(6)]
    spec = job(batch_size=48, objective="progress", nodes={"max": 16})
    asked = request(spec, costs, nodes(16), measured=profile(costs))
    calm, calm_why = planned(replace(asked, outlook=NO_LOSSES))
    rough, rough_why = planned(
        replace(asked, outlook=Outlook(losses=LossRate(per_node_s=0.01), morph_s=10.0))
    )
    assert len(rough.nodes) < len(calm.nodes)
    assert rough.predicted_step_s > calm.predicted_step_s
    assert rough_why.value < calm_why.value
    assert rough_why.outlook is not None
    assert any("cannot be better" in rival.reason for rival in rough_why.rivals)
    assert "losses counted" in rough_why.spare_reason


def test_by_cost_one_cheap_node_beats_many_dear_ones_and_rivals_say_so() -> None:
    spec = job(objective="cost", nodes={"max": 8})
    usable = tuple(replace(node, price_per_hour=1.0 + i) for i, node in enumerate(nodes(4)))
    made, why = planned(request(spec, UNEVEN, usable))
    assert made.nodes == ("n000",)
    assert why.value == pytest.approx(64 * 3600 / made.predicted_step_s)
    assert why.lower_bound_s <= made.predicted_step_s
    assert any(
        "dearer a sample" in rival.reason or "cannot be cheaper" in rival.reason for rival in why.rivals
    )


def test_by_cost_a_node_with_more_slots_is_not_taken_for_its_size() -> None:
    big = PlannableNode(node="big", slots=4, memory_bytes=2**34, device_kind=KIND, price_per_hour=40.0)
    small = tuple(replace(node, price_per_hour=1.0) for node in nodes(2))
    spec = job(objective="cost", nodes={"max": 8})
    made, _ = planned(request(spec, UNEVEN, (big, *small), measured=profile(UNEVEN, link=FREE_LINK)))
    assert "big" not in made.nodes


def test_by_cost_a_large_node_with_cheap_slots_takes_no_small_layout_from_a_cheap_node() -> None:
    small = PlannableNode(node="small", slots=1, memory_bytes=GIB, device_kind=KIND, price_per_hour=1.0)
    large = replace(small, node="large", slots=8, price_per_hour=3.0)
    costs = [segment(), segment()]
    spec = job(objective="cost", layout={"stages": 1, "replicas": 1})
    made, why = planned(request(spec, costs, [small, large]))
    assert made.nodes == ("small",)
    assert why.value == planned(request(spec, costs, [small]))[1].value


def test_among_free_nodes_the_fastest_plan_is_the_cheapest() -> None:
    free = tuple(replace(node, price_per_hour=0.0) for node in nodes(5))
    asked = request(job(nodes={"max": 8}), UNEVEN, free)
    by_cost = replace(asked, spec=job(objective="cost", nodes={"max": 8}))
    assert planned(by_cost)[0] == planned(asked)[0]


def test_by_cost_nodes_without_a_price_are_named() -> None:
    usable = (replace(nodes(1)[0], price_per_hour=0.0), *nodes(6)[1:])
    answer = refused(request(job(objective="cost", nodes={"max": 8}), UNEVEN, usable))
    assert answer.reason.endswith("5 of 6 nodes have no known price: n001, n002, n003 ...")
    assert "price" in answer.change


def test_draws_lose_as_many_nodes_as_the_rate_says() -> None:
    losses = LossRate(per_node_s=1e-4, burst_weights=(1.0, 1.0))
    left_s = Draws(Outlook(losses=losses, horizon_s=1000.0), 30).trained_s(0)  # uses none, so never pauses
    mean_left = np.arange(31) @ left_s / 1000.0
    error = 3 * np.sqrt(30 * 0.1 * (1 + 2**2) / 3 / NUM_DRAWS)
    assert mean_left == pytest.approx(30 * (1 - 0.1 / 2), abs=error)
