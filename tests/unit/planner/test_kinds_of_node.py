"""Nodes of different speed, price and domain: what costs time decides, then what costs nothing."""

from dataclasses import replace

import pytest

from tests.support.planning import FREE_LINK, UNEVEN, job, nodes, planned, profile, request
from varuna_manager.planner import PlannableNode
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
    assert asked_of([very_slow, *nodes(3)]) == asked_of(list(nodes(3)))


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
