from dataclasses import replace

import pytest

from tests.support.planning import FAST_LINK, FREE_LINK, UNEVEN, job, nodes, planned, profile, request
from varuna_manager.planner import PlanRequest, plan
from varuna_manager.planner.refresh import busy_s, paces, refreshed
from varuna_runtime.spec.layout import Layout, Plan
from varuna_runtime.spec.profile import Profile

MEASURED = profile(UNEVEN, sizes=(2, 4))


def made(stages: int, replicas: int, *, recompute: bool = False) -> Plan:
    spec = job(layout={"stages": stages, "replicas": replicas}, virtual_replicas=4)
    found, _ = planned(request(spec, UNEVEN, nodes(stages * replicas), measured=MEASURED))
    *first, last = found.stages
    return replace(found, stages=(*(replace(stage, recompute=recompute) for stage in first), last))


def steps(
    measured: Profile, running: Plan, factors: dict[int, float], count: int = 9
) -> dict[int, list[float]]:
    """Steps as the profile says, but for the ranks in `factors`."""
    expected = busy_s(measured, running)
    return {
        rank: [expected[running.layout.stage_of(rank)] * factors.get(rank, 1.0)] * count
        for rank in range(running.layout.world_size)
    }


def test_steps_as_the_profile_says_have_a_pace_of_one() -> None:
    running = made(2, 2)
    found = paces(MEASURED, running, steps(MEASURED, running, {}))
    assert found.stages == pytest.approx((1.0, 1.0))
    assert found.nodes == pytest.approx(dict.fromkeys(running.nodes, 1.0))


def test_the_ops_of_a_stage_are_those_of_its_segments_and_recompute_where_it_does() -> None:
    plain, replayed = busy_s(MEASURED, made(2, 1)), busy_s(MEASURED, made(2, 1, recompute=True))
    first = made(2, 1).stages[0]
    costs = UNEVEN[first.first : first.last]
    assert plain[0] == pytest.approx(sum(cost.forward_s + cost.backward_s for cost in costs))
    assert replayed[0] - plain[0] == pytest.approx(sum(cost.forward_s for cost in costs))
    assert replayed[1] == plain[1]


def test_one_slow_step_changes_nothing() -> None:
    running = made(2, 1)
    seen = steps(MEASURED, running, {})
    seen[0][3] *= 1000
    assert paces(MEASURED, running, seen).stages == pytest.approx((1.0, 1.0))


def test_all_replicas_of_a_stage_together_are_the_stages_pace() -> None:
    running = made(2, 2)
    found = paces(MEASURED, running, steps(MEASURED, running, {0: 1.5, 2: 1.5}))
    assert found.stages == pytest.approx((1.5, 1.0))
    assert found.nodes == pytest.approx(dict.fromkeys(running.nodes, 1.0))


@pytest.mark.parametrize("replicas", [2, 3])
def test_one_replica_of_a_stage_is_its_nodes_pace(replicas: int) -> None:
    running = made(2, replicas)
    found = paces(MEASURED, running, steps(MEASURED, running, {2: 1.5}))
    assert found.stages == pytest.approx((1.0, 1.0))
    slow = running.placement[2].node
    assert found.nodes == pytest.approx(dict.fromkeys(running.nodes, 1.0) | {slow: 1.5})


def test_the_refreshed_profile_says_what_the_steps_took_and_keeps_all_else() -> None:
    running = made(3, 1, recompute=True)
    seen = steps(MEASURED, running, {0: 2.0, 1: 0.5})
    now = refreshed(MEASURED, running, paces(MEASURED, running, seen).stages, by="steps of a test")
    assert busy_s(now, running) == pytest.approx([seen[rank][0] for rank in range(3)])
    assert paces(now, running, seen).stages == pytest.approx((1.0, 1.0, 1.0))
    assert now.refreshed_by == "steps of a test"
    timeless = [
        replace(
            each,
            refreshed_by="",
            by_micro_batch=tuple(
                replace(at, segments=tuple(replace(c, forward_s=0.0, backward_s=0.0) for c in at.segments))
                for at in each.by_micro_batch
            ),
        )
        for each in (MEASURED, now)
    ]
    assert timeless[0] == timeless[1]


def test_every_micro_batch_size_is_refreshed_alike() -> None:
    running = made(1, 1)
    now = refreshed(MEASURED, running, (3.0,), by="a test")
    for old, new in zip(MEASURED.by_micro_batch, now.by_micro_batch, strict=True):
        assert [cost.forward_s for cost in new.segments] == pytest.approx(
            [3 * c.forward_s for c in old.segments]
        )


def test_a_stage_without_ops_keeps_its_times() -> None:
    idle = [replace(cost, forward_s=0.0, backward_s=0.0) for cost in UNEVEN]
    running = made(1, 1)
    assert paces(profile(idle), running, {0: [0.1]}).stages == (1.0,)


@pytest.mark.parametrize(
    ("count", "slots", "stages", "replicas"),
    [
        (1, 1, 1, 1),
        (4, 1, 2, 2),
        (3, 1, 3, 1),
        (2, 4, 3, 2),
        (2, 4, 4, 2),
        (3, 2, 2, 3),
        (2, 3, 2, 2),
        (1, 4, 2, 2),
    ],
)
def test_the_running_plans_step_by_the_same_profile_is_what_it_was_predicted(
    count: int, slots: int, stages: int, replicas: int
) -> None:
    measured = profile(UNEVEN, link=FAST_LINK, same_node=FREE_LINK)
    spec = job(layout={"stages": stages, "replicas": replicas}, virtual_replicas=4)
    running, _ = planned(request(spec, UNEVEN, nodes(count, slots=slots), measured=measured))
    assert running.layout == Layout(stages=stages, replicas=replicas)
    asked = request(job(virtual_replicas=4), UNEVEN, nodes(count + 1, slots=slots), measured=measured)
    assert running_s(replace(asked, batch=running.batch), running) == pytest.approx(running.predicted_step_s)


def test_the_running_plans_step_follows_the_profile() -> None:
    spec = job(layout={"stages": 2, "replicas": 1}, virtual_replicas=1)
    measured = profile(UNEVEN, link=FREE_LINK, optimizer_step_s_per_byte=0.0)
    asked = request(spec, UNEVEN, nodes(2), measured=measured)
    running, _ = planned(asked)
    slower = refreshed(measured, running, (2.0, 2.0), by="a test")
    now = replace(asked, profile=slower, batch=running.batch)
    assert running_s(now, running) == pytest.approx(2 * running.predicted_step_s)
    assert plan(now).running_step_s is None


def test_a_running_plan_has_its_step_though_a_node_of_it_is_not_offered_any_more() -> None:
    asked = request(job(virtual_replicas=4), UNEVEN, nodes(4))
    running, _ = planned(asked)
    fewer = replace(asked, nodes=nodes(1), batch=running.batch)
    assert len(running.nodes) > 1
    assert running_s(fewer, running) == pytest.approx(running.predicted_step_s)


def test_a_refreshed_profile_moves_segments_off_the_slow_stage_and_keeps_the_batch_shape() -> None:
    spec = job(layout={"stages": 2, "replicas": 1}, virtual_replicas=1)
    before = request(spec, UNEVEN, nodes(2), measured=profile(UNEVEN, link=FREE_LINK))
    running, _ = planned(before)
    slower = refreshed(before.profile, running, (3.0, 1.0), by="a test")
    after, why = planned(replace(before, profile=slower, batch=running.batch))
    assert after.stages[0].last < running.stages[0].last
    assert after.batch == running.batch
    assert "fitted to a test" in why.profile_source


def running_s(asked: PlanRequest, running: Plan) -> float | None:
    return plan(replace(asked, running=running)).running_step_s
