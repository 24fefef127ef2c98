"""A backward in two parts costs what both parts take."""

from dataclasses import replace

import pytest

from tests.support.planning import FREE_LINK, job, nodes, planned, profile, request, segment
from varuna_manager.planner import Explanation
from varuna_manager.planner.refresh import busy_s
from varuna_runtime.spec.layout import ScheduleKind
from varuna_runtime.spec.profile import SegmentCost

WHOLE = segment(forward_s=0.01, backward_s=0.02)


def explained(cost: SegmentCost, schedule: str) -> Explanation:
    costs = [cost] * 4
    spec = job(layout={"stages": 2, "replicas": 1}, schedule=schedule)
    return planned(request(spec, costs, nodes(2), measured=profile(costs, link=FREE_LINK)))[1]


@pytest.mark.parametrize(
    ("input_s", "weight_s", "wanted_s"),
    [(0.012, 0.013, 0.025), (0.012, None, 0.02), (0.009, 0.009, 0.02)],  # less than a whole one: an accident
)
def test_a_stage_with_split_backwards_takes_both_parts(
    input_s: float, weight_s: float | None, wanted_s: float
) -> None:
    cost = replace(WHOLE, input_s=input_s, weight_s=weight_s)
    split, whole = (explained(cost, kind) for kind in (ScheduleKind.ZERO_BUBBLE, ScheduleKind.ONE_F_ONE_B))
    for found, each_s in ((split, wanted_s), (whole, WHOLE.backward_s)):
        assert found.timing is not None
        assert found.timing.stages[0].backward_s == pytest.approx(2 * each_s)
        assert found.stages[0].backward_s == pytest.approx(2 * each_s)  # what `varuna plan` shows


def test_steps_with_split_backwards_that_run_as_profiled_are_at_pace() -> None:
    costs = [replace(WHOLE, input_s=0.012, weight_s=0.013)] * 4
    spec = job(layout={"stages": 2, "replicas": 1}, schedule=ScheduleKind.ZERO_BUBBLE)
    measured = profile(costs, link=FREE_LINK)
    chosen, _ = planned(request(spec, costs, nodes(2), measured=measured))
    assert busy_s(measured, chosen) == pytest.approx((0.07, 0.07))
