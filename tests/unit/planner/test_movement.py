"""Roles go to the nodes that hold their state, as far as that costs no time."""

from dataclasses import replace
from itertools import permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.planning import job, nodes, request, segment
from varuna_manager.planner import PlanRequest, movement, plan
from varuna_manager.planner.search import NEAR
from varuna_runtime.spec.layout import Plan

FOUR = tuple(segment() for _ in range(4))


def made(asked: PlanRequest) -> Plan:
    outcome = plan(asked).outcome
    assert isinstance(outcome, Plan)
    return outcome


def pipeline(num_nodes: int, **held: tuple[int, ...]) -> PlanRequest:
    """Four equal segments as four stages."""
    layout = {"stages": 4, "replicas": num_nodes // 4}
    return replace(
        request(job(layout=layout, batch_size=512, nodes={"min": 1, "max": 1024}), FOUR, nodes(num_nodes)),
        held=held,
    )


def stage_on(of: Plan) -> dict[str, int]:
    return {slot.node: of.layout.stage_of(rank) for rank, slot in enumerate(of.placement)}


def test_each_stage_goes_to_the_node_that_holds_its_segments() -> None:
    asked = pipeline(4, n000=(3,), n001=(2,), n002=(0,), n003=(1,))
    found = made(asked)
    assert stage_on(found) == {"n000": 3, "n001": 2, "n002": 0, "n003": 1}
    assert movement.moved_bytes(asked, found) == 0


def test_a_node_that_holds_nothing_needed_is_left_out_for_one_that_does() -> None:
    asked = pipeline(5, n000=(0,), n001=(1,), n002=(2,), n004=(3,))
    assert stage_on(made(asked)) == {"n000": 0, "n001": 1, "n002": 2, "n004": 3}


def test_without_copies_places_are_as_they_were() -> None:
    asked = pipeline(8)
    assert made(replace(asked, held={"n000": ()})).placement == made(asked).placement


def test_roles_stay_where_it_makes_no_difference() -> None:
    every = {f"n{i:03d}": (0, 1, 2, 3) for i in range(8)}
    assert made(pipeline(8, **every)).placement == made(pipeline(8)).placement


@pytest.mark.parametrize("odd", [{"domain": "far"}, {"price_per_hour": 2.0}, {"memory_bytes": 2**40}])
def test_only_nodes_that_are_alike_change_places(odd: dict[str, object]) -> None:
    asked = pipeline(4, n000=(3,), n003=(0,))
    other = replace(asked, nodes=(*asked.nodes[:3], replace(asked.nodes[3], **odd)))  # type: ignore[arg-type]
    plain = made(replace(other, held={}))
    assert stage_on(made(other))["n003"] == stage_on(plain)["n003"]


def test_the_explanation_says_how_many_bytes_move() -> None:
    asked = pipeline(4, n000=(0,), n001=(1,), n002=(2,))
    why = plan(asked).explanation
    assert why is not None
    each = FOUR[0].param_bytes + FOUR[0].optimizer_bytes
    assert (why.moved_bytes, why.needed_bytes) == (each, 4 * each)
    untold = plan(replace(asked, held={})).explanation
    assert untold is not None
    assert untold.moved_bytes is None


HELD = st.dictionaries(
    st.sampled_from([f"n{i:03d}" for i in range(6)]),
    st.sets(st.integers(0, 3), max_size=3).map(lambda found: tuple(sorted(found))),
)


@settings(max_examples=40, deadline=None)
@given(st.integers(2, 6), HELD)
def test_few_bytes_never_cost_more_than_the_tolerance(
    num_nodes: int, held: dict[str, tuple[int, ...]]
) -> None:
    asked = request(job(), FOUR, nodes(num_nodes))
    free, bound = made(asked), replace(asked, held=held)
    found = made(bound)
    assert found.predicted_step_s <= free.predicted_step_s * (1 + NEAR) * (1 + 1e-9)
    assert movement.moved_bytes(bound, found) <= movement.moved_bytes(bound, free)


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.integers(-9, 9), min_size=5, max_size=5), min_size=1, max_size=5))
def test_the_assignment_of_few_is_the_cheapest(costs: list[list[int]]) -> None:
    def total(columns: tuple[int, ...] | list[int]) -> int:
        return sum(row[column] for row, column in zip(costs, columns, strict=True))

    found = movement._cheapest(costs)
    assert len(set(found)) == len(costs)
    assert total(found) == min(total(columns) for columns in permutations(range(5), len(costs)))


def test_many_nodes_that_only_changed_names_move_nothing() -> None:
    num = 200
    asked = pipeline(num)
    before = stage_on(made(asked))
    names = sorted(before)
    held = {name: (before[other],) for name, other in zip(names, names[1:] + names[:1], strict=True)}
    bound = replace(asked, held=held)
    assert num**3 > movement.EXACT_MAX
    assert movement.moved_bytes(bound, made(asked)) > 0
    assert movement.moved_bytes(bound, made(bound)) == 0
