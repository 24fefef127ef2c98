"""A backward in two parts costs what both parts take."""

from dataclasses import replace

import pytest

from tests.support.planning import FREE_LINK, job, nodes, planned, profile, request, segment
from varuna_manager.planner import Explanation
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
    split, whole = (
        explained(cost, schedule).timing for schedule in (ScheduleKind.ZERO_BUBBLE, ScheduleKind.ONE_F_ONE_B)
    )
    assert split is not None
    assert whole is not None
    assert split.stages[0].backward_s == pytest.approx(2 * wanted_s)
    assert whole.stages[0].backward_s == pytest.approx(2 * WHOLE.backward_s)
