"""One node with 60% of the others' memory: fewer segments or recompute for it, or idle; never equal cuts."""

from tests.support.planning import job, nodes, planned, request, segment
from tests.support.planning_checks import check_invariants
from varuna_manager.planner import PlannableNode, PlanRequest
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.layout import Plan, Stage
from varuna_runtime.spec.profile import SegmentCost

MIB = 2**20
WEAK = "weak"


def asked(spec: JobSpec, costs: list[SegmentCost], memory_bytes: int) -> PlanRequest:
    weak = PlannableNode(
        node=WEAK, slots=1, memory_bytes=int(0.6 * memory_bytes), device_kind=nodes(1)[0].device_kind
    )
    return request(spec, costs, [weak, *nodes(2, memory_bytes=memory_bytes)])


def stage_on(made: Plan, node: str) -> Stage | None:
    ranks = made.ranks_on(node)
    return made.stages[made.layout.stage_of(ranks[0])] if ranks else None


def test_activations_that_fit_in_no_order_on_the_small_node_change_the_plan() -> None:
    costs = [segment(param_bytes=MIB, saved_bytes=100 * MIB, output_bytes=MIB) for _ in range(6)]
    spec = job(layout={"stages": 3, "replicas": 1}, schedule="1f1b", virtual_replicas=1)
    roomy, _ = planned(request(spec, costs, nodes(3, memory_bytes=720 * MIB)))
    assert [stage.recompute for stage in roomy.stages] == [False] * 3
    tight = asked(spec, costs, 720 * MIB)
    made, _ = planned(tight)
    check_invariants(tight, made)
    assert stage_on(made, WEAK) is not None
    assert [(s.first, s.last, s.recompute) for s in made.stages] != [
        (s.first, s.last, s.recompute) for s in roomy.stages
    ]


def test_weights_that_fit_on_the_others_only_leave_the_small_node_less_or_idle() -> None:
    costs = [segment(param_bytes=100 * MIB, saved_bytes=MIB) for _ in range(6)]
    spec = job(virtual_replicas=1)
    tight = asked(spec, costs, 2048 * MIB)
    made, _ = planned(tight)
    check_invariants(tight, made)
    small = stage_on(made, WEAK)
    assert small is None or small.last - small.first < 3
