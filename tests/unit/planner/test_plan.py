import re
from dataclasses import replace
from math import inf

import pytest

from tests.support.planning import (
    FREE_LINK,
    GIB,
    UNEVEN,
    job,
    nodes,
    planned,
    profile,
    refused,
    request,
    segment,
)
from tests.support.planning_checks import check_invariants
from varuna_manager.planner import PlannableNode, plan
from varuna_manager.planner.explain import spread
from varuna_runtime.spec.layout import BatchShape, Layout, ScheduleKind
from varuna_runtime.spec.model import TiedParameter, TiedUse
from varuna_runtime.spec.profile import LinkCost, SegmentProfile


def test_a_batch_that_leaves_a_short_micro_batch_takes_less_time_than_a_full_one() -> None:
    """The last micro-batch of 9 samples in fours has one, and a size of one was measured."""
    costs = [segment(forward_s=0.01, backward_s=0.02)] * 2
    small = SegmentProfile(micro_batch_size=1, segments=tuple(replace(c, forward_s=0.004) for c in costs))
    measured = replace(profile(costs, sizes=(4,), link=FREE_LINK), optimizer_step_s_per_byte=0.0)
    measured = replace(measured, by_micro_batch=(small, *measured.by_micro_batch))
    spec = job(batch_size=9, micro_batch_size=4)
    made, _ = planned(request(spec, costs, nodes(1), measured=measured))
    assert made.predicted_step_s == pytest.approx(2 * 0.06 + 2 * 0.024)


def test_node_count_without_a_matching_layout_never_ends_the_job() -> None:
    """Case T25: every count of nodes gets a plan, or a reason to park."""
    spec = job(nodes={"min": 2, "max": 32})
    batch = BatchShape(batch_size=64, micro_batch_size=2, virtual_replicas=32)
    for count in range(40, -1, -1):
        asked = request(spec, UNEVEN, nodes(count), batch=batch)
        if count >= 2:
            check_invariants(asked, planned(asked)[0])
        else:
            assert (
                refused(asked).change == f"add {2 - count} node{'s' if count < 1 else ''}, or lower nodes.min"
            )


def test_thirteen_nodes_are_not_twelve() -> None:
    costs = [segment(output_bytes=2**10) for _ in range(13)]
    spec = job(batch_size=512, micro_batch_size=1, nodes={"max": 13}, virtual_replicas=1)
    twelve, _ = planned(request(spec, costs, nodes(12), measured=profile(costs, sizes=(1,))))
    thirteen, _ = planned(request(spec, costs, nodes(13), measured=profile(costs, sizes=(1,))))
    assert thirteen.layout == Layout(stages=13, replicas=1)
    assert thirteen.predicted_step_s < twelve.predicted_step_s


def test_a_stage_recomputes_only_where_it_does_not_fit_otherwise() -> None:
    costs = [segment(saved_bytes=100 * 2**20, output_bytes=2**20) for _ in range(4)]
    spec = job(layout={"stages": 4, "replicas": 1}, schedule="1f1b", virtual_replicas=1)
    loose, _ = planned(request(spec, costs, nodes(4)))
    tight, _ = planned(request(spec, costs, nodes(4, memory_bytes=300 * 2**20)))
    assert [stage.recompute for stage in loose.stages] == [False] * 4
    assert [stage.recompute for stage in tight.stages] == [True, True, False, False]
    assert tight.predicted_step_s > loose.predicted_step_s


def test_a_schedule_is_left_when_its_stashes_do_not_fit() -> None:
    costs = [segment(saved_bytes=10 * 2**20, output_bytes=200 * 2**20) for _ in range(3)]
    spec = job(layout={"stages": 3, "replicas": 1}, virtual_replicas=1)
    made, why = planned(request(spec, costs, nodes(3, memory_bytes=1250 * 2**20)))
    assert made.schedule is ScheduleKind.ONE_F_ONE_B
    unfit = [rival.schedule for rival in why.rivals if rival.predicted_step_s == inf]
    assert unfit == ["eager-1f1b"]  # one line a layout


def test_a_rule_holds_as_many_micro_batches_as_there_is_memory_for() -> None:
    costs = [segment(saved_bytes=10 * 2**20, output_bytes=5 * 2**20) for _ in range(2)]
    spec = job(layout={"stages": 2, "replicas": 1}, schedule="work-conserving", virtual_replicas=1)
    caps = []
    for memory_bytes in (100, 200, 300, 900):
        asked = request(spec, costs, nodes(2, memory_bytes=memory_bytes * 2**20))
        made, _ = planned(asked)
        check_invariants(asked, made)
        assert made.stages[0].recompute is False
        caps.append(made.stages[0].in_flight)
    assert 3 <= caps[0] < caps[1] < caps[2] < 32
    assert caps[3] == 0


def test_the_small_node_stays_idle_when_a_stage_does_not_fit_on_it() -> None:
    costs = [segment(param_bytes=100 * 2**20) for _ in range(4)]
    small = PlannableNode(node="a-small", slots=1, memory_bytes=2**20, device_kind="cpu:avx2")
    asked = request(job(virtual_replicas=1), costs, [small, *nodes(3)])
    made, why = planned(asked)
    assert "a-small" not in made.nodes
    assert why.spare_nodes == ("a-small",)
    check_invariants(asked, made)


def test_nodes_above_the_maximum_stay_idle() -> None:
    made, why = planned(request(job(nodes={"max": 3}), UNEVEN, nodes(5)))
    assert len(made.nodes) <= 3
    assert set(why.spare_nodes) == {node.node for node in nodes(5)} - set(made.nodes)


def test_nodes_of_another_device_kind_are_spares_for_a_bitwise_job() -> None:
    foreign = PlannableNode(node="g", slots=1, memory_bytes=16 * GIB, device_kind="cuda:h200")
    made, why = planned(request(job(), UNEVEN, [foreign, *nodes(1)]))
    assert made.nodes == ("n000",)
    assert why.spare_nodes == ("g",)
    mixed, _ = planned(request(job(exactness="statistical"), UNEVEN, [foreign, *nodes(1)]))
    assert mixed.nodes == ("g", "n000")
    assert "device kind cpu:avx2" in refused(request(job(), UNEVEN, [foreign])).reason


def test_stages_of_a_replica_are_neighbours_inside_a_node() -> None:
    slow = LinkCost(latency_s=1.0, bandwidth_bps=1e6)
    measured = profile(UNEVEN, link=slow, same_node=FREE_LINK)
    spec = job(layout={"stages": 3, "replicas": 2}, virtual_replicas=2)
    made, _ = planned(request(spec, UNEVEN, nodes(2, slots=4), measured=measured))
    for replica in range(2):
        ranks = [made.layout.rank(stage=s, replica=replica) for s in range(3)]
        assert len({made.placement[rank].node for rank in ranks}) == 1


@pytest.mark.parametrize("batch_size", [2, 3, 4, 5, 64])
def test_fewer_micro_batches_than_stages_is_fine(batch_size: int) -> None:
    spec = job(batch_size=batch_size, micro_batch_size=2, layout={"stages": 4, "replicas": 1})
    asked = request(spec, UNEVEN, nodes(4))
    made, _ = planned(asked)
    check_invariants(asked, made)
    assert made.layout == Layout(stages=4, replicas=1)


def test_more_pinned_stages_than_segments_is_refused_in_words() -> None:
    answer = refused(request(job(layout={"stages": 7}), UNEVEN, nodes(8)))
    assert answer.reason == "layout.stages is 7, but the model has only 6 segments"
    assert "at most 6" in answer.change


def test_a_pinned_layout_larger_than_the_pool_is_refused_in_words() -> None:
    answer = refused(request(job(layout={"stages": 2, "replicas": 3}), UNEVEN, nodes(4)))
    assert answer.reason == "the pinned layout needs at least 6 slots, 4 usable nodes have 4"


def test_more_pinned_replicas_than_virtual_replicas_is_refused_in_words() -> None:
    spec = job(layout={"replicas": 3}, virtual_replicas=2)
    answer = refused(request(spec, UNEVEN, nodes(4)))
    assert "only 2 virtual replicas" in answer.reason
    assert answer.change == "set layout.replicas to at most 2, or virtual_replicas to at least 3"
    batch = BatchShape(batch_size=64, micro_batch_size=2, virtual_replicas=2)
    recorded = refused(request(spec, UNEVEN, nodes(4), batch=batch))
    assert recorded.change == "set layout.replicas to at most 2"


def test_more_virtual_replicas_than_micro_batches_is_refused_in_words() -> None:
    spec = job(batch_size=4, micro_batch_size=2, virtual_replicas=3)
    assert "at least 3 micro-batches" in refused(request(spec, UNEVEN, nodes(4))).reason


def test_a_model_too_large_for_the_pool_says_how_much_it_needs() -> None:
    costs = [segment(param_bytes=GIB) for _ in range(4)]
    answer = refused(request(job(virtual_replicas=1), costs, nodes(2, memory_bytes=GIB)))
    assert "2x1" in answer.reason
    assert "needs 1" in answer.reason
    assert "1 GiB" in answer.reason


def test_the_fewest_nodes_that_would_do_are_told() -> None:
    costs = [segment(param_bytes=GIB) for _ in range(4)]
    spec = job(virtual_replicas=1)
    answer = refused(request(spec, costs, nodes(1, memory_bytes=14 * GIB)))
    found = re.match(r"add (\d+) nodes? like n000, use slots with ", answer.change)
    assert found is not None
    more = int(found.group(1))
    planned(request(spec, costs, nodes(1 + more, memory_bytes=14 * GIB)))
    refused(request(spec, costs, nodes(more, memory_bytes=14 * GIB)))
    alone = job(virtual_replicas=1, nodes={"max": 1})
    assert "add" not in refused(request(alone, costs, nodes(1, memory_bytes=14 * GIB))).change


@pytest.mark.parametrize(
    ("pinned", "change"),
    [
        ({"layout": {"stages": 1}}, "leave layout.stages and layout.replicas to auto, use slots"),
        ({"schedule": "gpipe"}, "leave schedule to auto, use slots"),
    ],
)
@pytest.mark.parametrize("objective", ["throughput", "progress"])
def test_what_is_pinned_without_need_is_told(pinned: dict[str, object], change: str, objective: str) -> None:
    costs = [segment(param_bytes=2**20, output_bytes=2**26, saved_bytes=2**26) for _ in range(4)]
    usable = nodes(4, memory_bytes=2**30)
    spec = job(virtual_replicas=1, objective=objective, nodes={"max": 4}, **pinned)
    if "layout" in pinned:
        costs = [replace(cost, param_bytes=2**27, output_bytes=2**20) for cost in costs]
    assert refused(request(spec, costs, usable)).change.startswith(change)
    planned(request(job(virtual_replicas=1, nodes={"max": 4}), costs, usable))


def test_too_little_memory_is_told_whatever_the_objective() -> None:
    """The nodes that would do are more than the request has."""
    costs = [segment(param_bytes=GIB) for _ in range(4)]
    answers = {
        refused(request(job(virtual_replicas=1, objective=by), costs, priced)).change
        for by in ("throughput", "cost", "progress")
        for priced in [[replace(node, price_per_hour=1.0) for node in nodes(1, memory_bytes=14 * GIB)]]
    }
    assert len(answers) == 1
    assert answers.pop().startswith("add ")


def test_smaller_micro_batches_are_no_advice_where_there_are_none() -> None:
    costs = [segment(param_bytes=GIB) for _ in range(2)]
    one = job(micro_batch_size=1)
    two = job(micro_batch_size=2)
    few = nodes(2, memory_bytes=GIB)
    batch = BatchShape(batch_size=64, micro_batch_size=2, virtual_replicas=4)
    assert "micro-batches," in refused(request(two, costs, few)).change
    assert "micro-batches" not in refused(request(one, costs, few)).change
    assert "micro-batches" not in refused(request(two, costs, few, batch=batch)).change


def test_segments_that_take_no_time_or_more_bytes_than_an_integer_holds_have_a_plan() -> None:
    idle = [segment(forward_s=0.0, backward_s=0.0) for _ in range(3)]
    made, why = planned(request(job(batch_size=63), idle, nodes(3)))
    assert made.predicted_step_s > 0
    assert why.lower_bound_s > 0
    nothing = [segment(forward_s=0.0, backward_s=0.0, param_bytes=0) for _ in range(3)]
    for by in ("throughput", "cost", "progress"):
        free = [replace(node, price_per_hour=1.0) for node in nodes(1)]
        assert planned(request(job(objective=by), nothing, free))[1].value > 0
    large = [segment(param_bytes=10**18, output_bytes=10**18) for _ in range(12)]
    endless = nodes(2, memory_bytes=10**21)
    made, why = planned(request(job(), large, endless))
    assert 0 < why.lower_bound_s <= made.predicted_step_s


def test_no_slot_idles_less_than_nothing() -> None:
    _, why = planned(request(job(), [segment() for _ in range(6)], nodes(1)))
    assert str(why.bubble_share) == "0.0"


def test_little_memory_is_told_in_its_own_unit() -> None:
    costs = [segment(param_bytes=2**20) for _ in range(4)]
    answer = refused(request(job(virtual_replicas=1), costs, nodes(2, memory_bytes=2**20)))
    assert "the largest slot has 1 MiB" in answer.reason
    assert "GiB" not in answer.reason


def test_the_first_plan_chooses_a_micro_batch_that_still_fits_at_the_fewest_nodes() -> None:
    costs = [segment(param_bytes=2**20, saved_bytes=2**26) for _ in range(4)]
    doubled = tuple(replace(cost, saved_bytes=2 * cost.saved_bytes) for cost in costs)
    measured = replace(
        profile(costs),
        by_micro_batch=(
            SegmentProfile(micro_batch_size=1, segments=tuple(costs)),
            SegmentProfile(micro_batch_size=2, segments=doubled),
        ),
    )
    usable = nodes(4, memory_bytes=400 * 2**20)
    one = job(micro_batch_size="auto", nodes={"min": 1, "max": 4})
    four = job(micro_batch_size="auto", nodes={"min": 4, "max": 4})
    assert planned(request(one, costs, usable, measured=measured))[0].batch.micro_batch_size == 1
    assert planned(request(four, costs, usable, measured=measured))[0].batch.micro_batch_size == 2


def test_the_recorded_batch_shape_is_taken_as_given() -> None:
    batch = BatchShape(batch_size=64, micro_batch_size=4, virtual_replicas=4)
    made, why = planned(request(job(), UNEVEN, nodes(6), batch=batch))
    assert made.batch == batch
    assert why.profile_source == "a test, micro-batches of 2, scaled to 4"


def test_a_tied_parameter_costs_an_exchange_when_its_uses_are_in_different_stages() -> None:
    tied = (TiedParameter(uses=(TiedUse(segment=0, name="w0"), TiedUse(segment=5, name="w0"))),)
    spec = job(layout={"stages": 2, "replicas": 1})
    apart, _ = planned(request(spec, UNEVEN, nodes(2), tied=tied))
    free, _ = planned(request(spec, UNEVEN, nodes(2)))
    assert apart.predicted_step_s > free.predicted_step_s


def test_the_plan_does_not_depend_on_the_order_of_the_nodes() -> None:
    usable = nodes(7, slots=2)
    forward = plan(request(job(), UNEVEN, usable))
    assert plan(request(job(), UNEVEN, tuple(reversed(usable)))) == forward


def test_the_explanation_names_rivals_and_stages() -> None:
    made, why = planned(request(job(), UNEVEN, nodes(4)))
    assert [line.stage for line in why.stages] == list(range(made.layout.stages))
    assert all(line.memory_bytes > 0 for line in why.stages)
    assert why.rivals
    assert all(rival.reason for rival in why.rivals)
    assert all(r.predicted_step_s >= made.predicted_step_s * (1 - 1e-8) for r in why.rivals)
    assert 0 <= why.bubble_share < 1


def test_a_batch_below_every_measured_size_is_one_micro_batch() -> None:
    spec = job(batch_size=3, micro_batch_size="auto")
    made, _ = planned(request(spec, UNEVEN, nodes(2), measured=profile(UNEVEN, sizes=(4, 8))))
    assert made.batch == BatchShape(batch_size=3, micro_batch_size=3, virtual_replicas=1)


def test_a_plan_tells_how_its_step_varies_only_where_the_profile_saw_something_vary() -> None:
    steady = profile(UNEVEN)
    _, why = planned(request(job(), UNEVEN, nodes(4), measured=steady))
    assert spread(why) is None
    varying = replace(steady, compute_factor=(0.9, 1.0, 1.0, 1.0, 3.0))
    made, why = planned(request(job(), UNEVEN, nodes(4), measured=varying))
    found = spread(why)
    assert found is not None
    assert made.predicted_step_s < found.p50_s < found.p95_s
