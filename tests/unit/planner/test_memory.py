from itertools import accumulate, product

import pytest

from tests.support.planning import GIB, job, nodes, planned, profile, request, segment
from tests.support.planning_checks import check_invariants
from varuna_manager.planner import PlannableNode
from varuna_manager.planner.memory import in_flight, peak_bytes, residency
from varuna_manager.planner.workload import workload
from varuna_runtime.spec.layout import BatchShape, ScheduleKind
from varuna_runtime.spec.schedule import OpKind, program

COSTS = [segment(saved_bytes=1000, output_bytes=10, param_bytes=100) for _ in range(4)]


def batch(virtual_replicas: int) -> BatchShape:
    return BatchShape(batch_size=64, micro_batch_size=1, virtual_replicas=virtual_replicas)


@pytest.mark.parametrize(
    ("virtual", "replicas", "copies"),
    [(1, 1, 2), (2, 1, 3), (8, 1, 5), (8, 2, 5), (8, 8, 3), (8, 3, 5), (12, 5, 5)],
)
def test_gradient_copies_are_the_sums_of_the_tree_one_in_progress_and_one_to_exchange(
    virtual: int, replicas: int, copies: int
) -> None:
    assert residency(batch(virtual), replicas=replicas, in_flight=1).gradient_copies == copies


def test_gpipe_holds_every_micro_batch_and_1f1b_at_most_the_stages_left() -> None:
    assert in_flight(ScheduleKind.GPIPE, stages_left=2, num_micro=9) == 9
    assert in_flight(ScheduleKind.ONE_F_ONE_B, stages_left=2, num_micro=9) == 2
    assert in_flight(ScheduleKind.ONE_F_ONE_B, stages_left=4, num_micro=1) == 1


@pytest.mark.parametrize("schedule", list(ScheduleKind))
def test_what_a_stage_is_thought_to_hold_is_what_its_program_holds(schedule: ScheduleKind) -> None:
    for num_stages, num_micro in product(range(1, 5), range(1, 8)):
        for stage in range(num_stages):
            ops = program(schedule, stage=stage, num_stages=num_stages, num_micro=num_micro, recompute=True)
            change = {OpKind.FORWARD: 1, OpKind.RECOMPUTE: 0, OpKind.BACKWARD: -1}
            peak = max(accumulate(change[op.kind] for op in ops))
            assert in_flight(schedule, stages_left=num_stages - stage, num_micro=num_micro) == peak


def test_the_peak_is_the_sum_of_its_parts() -> None:
    work = workload(profile(COSTS), 2)
    kept = residency(batch(1), replicas=1, in_flight=3)
    # Two segments: 3 x 200 parameters and gradients, 400 optimizer, messages 2 x (10 + 10).
    fixed = 3 * 200 + 400 + 40
    assert peak_bytes(work, 1, 3, kept, recompute=False) == fixed + 3 * (2000 + 10)
    assert peak_bytes(work, 1, 3, kept, recompute=True) == fixed + 3 * 10 + 2000


def test_activations_scale_with_the_micro_batch_and_parameters_do_not() -> None:
    kept = residency(batch(1), replicas=1, in_flight=1)
    small, large = (workload(profile(COSTS), size) for size in (2, 4))
    grown = peak_bytes(large, 1, 2, kept, recompute=False) - peak_bytes(small, 1, 2, kept, recompute=False)
    assert grown == 1000 + 10 + 2 * (10 + 10)


def test_a_node_with_less_memory_gets_a_stage_that_fits_or_none() -> None:
    costs = [segment(param_bytes=120 * 2**20) for _ in range(6)]
    weak = PlannableNode(node="weak", slots=1, memory_bytes=int(0.6 * 2 * GIB), device_kind="cpu:avx2")
    asked = request(job(virtual_replicas=1), costs, [weak, *nodes(2, memory_bytes=2 * GIB)])
    check_invariants(asked, planned(asked)[0])
