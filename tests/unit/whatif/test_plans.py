"""The planner is asked once for nodes that differ by name only, and its answer is the same."""

from dataclasses import replace

import pytest

from tests.support.whatif import joins, recording, scenario
from varuna_manager.planner import plan
from varuna_manager.whatif.plans import Plans

NAMES = ["n10", "n2", "n33", "a", "n4"]


@pytest.mark.parametrize("count", range(1, 6))
def test_a_known_plan_on_other_names_is_what_the_planner_says(count: int) -> None:
    case, plans = scenario(recording(*joins(1), length_s=1.0)), Plans()
    plans.plan(case.request([f"x{i}" for i in range(count)], None))
    asked = case.request(NAMES[:count], None)
    assert plans.plan(asked) == plan(asked).outcome


def test_nodes_of_unequal_memory_are_told_apart() -> None:
    case, plans = scenario(recording(*joins(1), length_s=1.0)), Plans()
    asked = case.request(NAMES, None)
    nodes = tuple(
        replace(node, memory_bytes=node.memory_bytes // (1 + i % 2)) for i, node in enumerate(asked.nodes)
    )
    for shown in (nodes, nodes[::-1], nodes[1:] + nodes[:1]):
        request = replace(asked, nodes=shown)
        assert plans.plan(request) == plan(request).outcome
