"""Sums over replicas: measured ones where there are any, the link's bandwidth where not."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.planning import FREE_LINK, job, nodes, planned, profile, request, segment
from varuna_manager.planner import PlanRequest
from varuna_manager.planner.sums import SumCost
from varuna_runtime.spec.profile import LinkCost, Profile, ReduceCost

LINK = LinkCost(latency_s=1e-3, bandwidth_bps=8e9)
MEASURED = (
    ReduceCost(replicas=2, num_bytes=2**21, seconds=0.010),
    ReduceCost(replicas=2, num_bytes=2**23, seconds=0.022),
    ReduceCost(replicas=2, num_bytes=2**25, seconds=0.102),
)


def reduction_s(num_bytes: int, measured: Profile, *, replicas: int = 2, slots: int = 1) -> float:
    """The reduction of the only stage of a plan for a model of that many parameter bytes."""
    costs = [segment(param_bytes=num_bytes)]
    spec = job(layout={"stages": 1, "replicas": replicas}, virtual_replicas=replicas)
    asked = request(spec, costs, nodes(replicas // slots, slots=slots), measured=with_costs(measured, costs))
    _, why = planned(asked)
    assert why.timing is not None
    return why.timing.stages[0].reduction_s


def with_costs(measured: Profile, costs: list[object]) -> Profile:
    at = replace(measured.by_micro_batch[0], segments=tuple(costs))  # type: ignore[arg-type]
    return replace(measured, by_micro_batch=(at,))


def measured_with(*sums: ReduceCost, same_node: LinkCost = FREE_LINK) -> Profile:
    return replace(profile([segment()], link=LINK, same_node=same_node), reductions=sums)


@pytest.mark.parametrize("one", MEASURED)
def test_at_a_measured_size_a_plans_reduction_takes_what_was_measured(one: ReduceCost) -> None:
    assert reduction_s(one.num_bytes, measured_with(*MEASURED)) == pytest.approx(one.seconds)


def test_between_two_measured_sizes_it_takes_what_is_in_between() -> None:
    for low, high in pairwise(MEASURED):
        middle = (low.num_bytes + high.num_bytes) // 2
        wanted = (low.seconds + high.seconds) / 2
        assert reduction_s(middle, measured_with(*MEASURED)) == pytest.approx(wanted)


def test_above_the_largest_measured_size_it_takes_more_in_proportion() -> None:
    latencies_s = 2 * LINK.latency_s
    wanted = 2 * (MEASURED[-1].seconds - latencies_s) + latencies_s
    assert reduction_s(2**26, measured_with(*MEASURED)) == pytest.approx(wanted)


def test_more_replicas_take_as_long_as_what_each_sends_and_their_messages() -> None:
    # Four replicas send 1.5 times the bytes that two send, in six messages instead of two.
    wanted = MEASURED[1].seconds - 2 * LINK.latency_s + 6 * LINK.latency_s
    found = reduction_s(2**24 // 3, measured_with(*MEASURED), replicas=4)
    assert found == pytest.approx(wanted, rel=1e-6)


def test_without_measured_sums_the_link_decides() -> None:
    assert reduction_s(2**23, measured_with()) == pytest.approx(
        2 * LINK.latency_s + 2**23 * 8 / LINK.bandwidth_bps
    )


def test_sums_inside_a_node_say_nothing_of_those_across() -> None:
    inside = tuple(replace(one, crosses_nodes=False) for one in MEASURED)
    measured = measured_with(*inside, same_node=LINK)
    assert reduction_s(2**23, measured, slots=2) == pytest.approx(MEASURED[1].seconds)
    assert reduction_s(2**23, measured) == reduction_s(2**23, measured_with())


sums = st.lists(
    st.builds(
        ReduceCost,
        replicas=st.integers(2, 9),
        num_bytes=st.integers(1, 2**28),
        seconds=st.floats(1e-6, 10.0),
    ),
    max_size=5,
)


@given(sums, st.lists(st.floats(1.0, 2**30), min_size=2, max_size=6), st.integers(2, 16))
@settings(max_examples=200, deadline=None, derandomize=True)
def test_more_bytes_never_take_less_and_no_byte_less_than_the_least(
    measured: Sequence[ReduceCost], sizes: list[float], replicas: int
) -> None:
    cost = SumCost.of(LINK, measured)
    ordered = np.array(sorted(sizes))
    seconds = cost.seconds(replicas, ordered)
    assert (np.diff(seconds) >= -1e-12 * seconds[1:]).all()
    assert (seconds * (1 + 1e-9) >= ordered * cost.least_s_per_byte).all()
    assert [float(cost.seconds(replicas, size)) for size in ordered] == pytest.approx(seconds)


@given(sums)
@settings(max_examples=60, deadline=None, derandomize=True)
def test_the_bound_holds_and_the_best_of_all_layouts_is_chosen(measured: Sequence[ReduceCost]) -> None:
    costs = [segment(param_bytes=2**24), segment(param_bytes=2**22), segment(param_bytes=2**26)]
    found = replace(profile(costs, link=LINK), reductions=tuple(measured))
    spec = job(nodes={"max": 4}, virtual_replicas=4)
    made, why = planned(request(spec, costs, nodes(4), measured=found))
    assert why.lower_bound_s <= made.predicted_step_s
    pinned = [
        pinned_s(request(spec, costs, nodes(4), measured=found), stages, replicas)
        for stages in (1, 2, 3)
        for replicas in range(1, 4 // stages + 1)
    ]
    assert made.predicted_step_s == pytest.approx(min(pinned))


def pinned_s(asked: PlanRequest, stages: int, replicas: int) -> float:
    layout = job(layout={"stages": stages, "replicas": replicas}).layout
    spec = asked.spec.model_copy(update={"layout": layout})
    return planned(replace(asked, spec=spec))[0].predicted_step_s
