"""Nodes of different speed, price and domain: what costs time decides, then what costs nothing."""

from dataclasses import replace
from random import Random

import pytest

from tests.support.every_cut import best_placed_s
from tests.support.planning import (
    FAST_LINK,
    FREE_LINK,
    UNEVEN,
    job,
    nodes,
    planned,
    profile,
    request,
    segment,
)
from tests.support.planning_checks import check_invariants
from varuna_manager.planner import PlannableNode, PlanRequest, plan
from varuna_manager.planner.bounds import SLACK
from varuna_runtime.spec.layout import Layout, Plan
from varuna_runtime.spec.profile import LinkCost


def asked_of(usable: list[PlannableNode], **fields: object) -> Plan:
    spec = job(exactness="statistical", virtual_replicas=4, **fields)
    return planned(request(spec, UNEVEN, usable, measured=profile(UNEVEN, link=FREE_LINK)))[0]


def test_a_slot_at_half_the_speed_takes_twice_as_long() -> None:
    fast, slow = (asked_of([replace(nodes(1)[0], speed=speed)]) for speed in (1.0, 0.5))
    assert slow.predicted_step_s == pytest.approx(2 * fast.predicted_step_s)


def test_a_slow_node_is_left_out_where_it_would_hold_up_the_others() -> None:
    very_slow = replace(nodes(1)[0], node="slow", speed=0.1)
    usable = [very_slow, *nodes(3)]
    assert asked_of(usable) == asked_of(list(nodes(3)))
    spec = job(exactness="statistical", virtual_replicas=4)
    _, why = planned(request(spec, UNEVEN, usable, measured=profile(UNEVEN, link=FREE_LINK)))
    assert why.slow_nodes == ("slow (10% of the fastest): left out",)


def test_a_slow_node_is_used_where_more_slots_are_worth_it() -> None:
    slow = replace(nodes(1)[0], node="slow", speed=0.9)
    assert "slow" in asked_of([slow, *nodes(1)]).nodes


def test_replicas_of_a_stage_are_in_different_domains_and_a_replica_in_one() -> None:
    usable = [replace(node, domain="ab"[i // 4]) for i, node in enumerate(nodes(8))]
    made = asked_of(usable, layout={"stages": 2, "replicas": 4})
    domain = {node.node: node.domain for node in usable}
    for replica in range(4):
        ranks = [made.layout.rank(stage=stage, replica=replica) for stage in range(2)]
        assert {domain[made.placement[rank].node] for rank in ranks} == {"ab"[replica % 2]}


def test_the_cheaper_of_equal_nodes_are_taken() -> None:
    usable = [replace(node, price_per_hour=3.0 - i) for i, node in enumerate(nodes(3))]
    made = asked_of(usable, layout={"stages": 2, "replicas": 1})
    assert made.layout == Layout(stages=2, replicas=1)
    assert made.nodes == ("n001", "n002")


def test_the_explanation_says_why_nodes_are_spare() -> None:
    spec = job(layout={"stages": 2, "replicas": 2}, virtual_replicas=4)
    _, pinned = planned(request(spec, UNEVEN, nodes(5)))
    assert pinned.spare_nodes == ("n004",)
    assert pinned.spare_reason == "no layout on more than 4 slots is possible or worth a look"
    free = job(batch_size=4, micro_batch_size=2, virtual_replicas=2)
    made, why = planned(request(free, UNEVEN, nodes(20)))
    assert f"{made.layout} on {made.layout.world_size} slots" in why.spare_reason


def test_the_share_of_the_network_is_what_free_links_would_save() -> None:
    slow = LinkCost(latency_s=0.5, bandwidth_bps=1e9)
    spec = job(layout={"stages": 2, "replicas": 1}, virtual_replicas=1)
    shares = [
        planned(request(spec, UNEVEN, nodes(2), measured=profile(UNEVEN, link=link)))[1].network_share
        for link in (FREE_LINK, slow)
    ]
    assert shares[0] == pytest.approx(0.0)
    assert shares[1] > 0.1


EVEN = [segment()] * 9


def even(usable: list[PlannableNode], **fields: object) -> PlanRequest:
    spec = job(exactness="statistical", **fields)
    return request(spec, EVEN, usable, measured=profile(EVEN, link=FREE_LINK))


def test_slow_slots_share_a_stage_that_has_less_to_do() -> None:
    usable = [replace(node, speed=0.5 if i in (1, 4) else 1.0) for i, node in enumerate(nodes(6))]
    asked = even(usable, layout={"stages": 3, "replicas": 2}, virtual_replicas=2)
    made, why = planned(asked)
    (slow,) = {made.layout.stage_of(made.ranks_on(name)[0]) for name in ("n001", "n004")}
    sizes = [stage.last - stage.first for stage in made.stages]
    assert sizes[slow] == min(sizes) < max(sizes)
    assert why.stages[slow].forward_s == pytest.approx(2 * 0.01 * sizes[slow])
    assert why.slow_nodes == (f"n001, n004 (50% of the fastest): on stage {slow}, cut for that speed",)


def test_a_slow_node_of_many_slots_gets_neighbours_where_others_are_far() -> None:
    usable = [replace(node, speed=0.5 if i == 1 else 1.0) for i, node in enumerate(nodes(4, slots=2))]
    spec = job(exactness="statistical", layout={"stages": 4, "replicas": 2}, virtual_replicas=2)
    far = LinkCost(latency_s=0.5, bandwidth_bps=1e30)
    made, why = planned(request(spec, EVEN, usable, measured=profile(EVEN, link=far, same_node=FREE_LINK)))
    assert "cut for that speed" in why.slow_nodes[0]
    first, second = made.ranks_on("n001")
    assert first % 2 == 0
    assert second == first + 1


def test_the_running_plan_is_as_slow_as_its_slow_stage_is_planned() -> None:
    usable = [replace(node, speed=0.5 if i == 1 else 1.0) for i, node in enumerate(nodes(3))]
    asked = even(usable, layout={"stages": 3, "replicas": 1}, virtual_replicas=1)
    made, _ = planned(asked)
    again = plan(replace(asked, running=made, batch=made.batch))
    assert again.running_step_s == pytest.approx(made.predicted_step_s)


@pytest.mark.parametrize("seed", range(40))
def test_no_placement_of_slow_nodes_and_no_cut_is_below_the_bound_or_much_faster(seed: int) -> None:
    random = Random(seed)
    costs = [
        segment(
            forward_s=random.uniform(0.005, 0.05),
            backward_s=random.uniform(0.01, 0.1),
            param_bytes=random.choice([0, 2**20, 2**24]),
        )
        for _ in range(random.randint(3, 5))
    ]
    usable = nodes(random.randint(2, 4), memory_bytes=2**40)
    mixed = [replace(node, speed=random.choice([1.0, 1.0, 0.8, 0.5])) for node in usable]
    spec = job(
        exactness="statistical",
        batch_size=random.choice([8, 12, 20]),
        virtual_replicas=random.choice([1, 2, 4]),
    )
    measured = profile(costs, link=random.choice([FREE_LINK, FAST_LINK]))
    asked = request(spec, costs, mixed, measured=measured)
    made, why = planned(asked)
    best = best_placed_s(asked)
    check_invariants(asked, made)
    assert why.lower_bound_s <= best * (1 + SLACK)
    assert made.predicted_step_s <= best * 1.02
