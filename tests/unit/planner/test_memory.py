from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate, product

import pytest

from tests.support.planning import GIB, job, nodes, planned, profile, request, segment
from tests.support.planning_checks import check_invariants
from varuna_manager.planner import PlannableNode
from varuna_manager.planner.memory import Residency, kept, most_sums, peak_bytes, residency
from varuna_manager.planner.pipeline import Boundary, Pipeline, StageTiming
from varuna_manager.planner.recording import TimedOp
from varuna_manager.planner.simulate import timeline
from varuna_manager.planner.workload import workload
from varuna_runtime.spec.layout import BatchShape, Layout, ScheduleKind
from varuna_runtime.spec.reduction import owned_nodes, share
from varuna_runtime.spec.schedule import OpKind

COSTS = [segment(saved_bytes=1000, output_bytes=10, param_bytes=100) for _ in range(4)]


def batch(virtual_replicas: int) -> BatchShape:
    return BatchShape(batch_size=64, micro_batch_size=1, virtual_replicas=virtual_replicas)


@pytest.mark.parametrize(
    ("virtual", "replicas", "copies"),
    [(1, 1, 2), (2, 1, 3), (8, 1, 5), (8, 2, 4), (8, 8, 2), (8, 3, 4), (12, 5, 4), (12, 1, 5)],
)
def test_gradient_copies_are_the_sums_of_the_tree_and_the_final_ones(
    virtual: int, replicas: int, copies: int
) -> None:
    assert residency(batch(virtual), replicas=replicas, held=1).gradient_copies == copies


def test_gpipe_holds_every_micro_batch_and_1f1b_at_most_the_stages_left() -> None:
    assert held(ScheduleKind.GPIPE, stages_left=2, num_micro=9).held == 9
    assert held(ScheduleKind.ONE_F_ONE_B, stages_left=2, num_micro=9).held == 2
    assert held(ScheduleKind.ONE_F_ONE_B, stages_left=4, num_micro=1).held == 1
    assert held(ScheduleKind.WORK_CONSERVING, stages_left=2, num_micro=9, in_flight=4).held == 4
    assert held(ScheduleKind.WORK_CONSERVING, stages_left=1, num_micro=9).held == 1


def test_a_split_backward_holds_what_it_owes_and_recomputed_ones_too() -> None:
    resident = held(ScheduleKind.ZERO_BUBBLE, stages_left=2, num_micro=90, in_flight=5)
    assert (resident.held, resident.recomputed) == (5 + 12, 1 + 12)


def held(
    schedule: ScheduleKind, *, stages_left: int, num_micro: int, in_flight: int = 0, stages: int = 4
) -> Residency:
    return kept(
        batch(1),
        schedule,
        layout=Layout(stages=stages, replicas=1),
        stages_left=stages_left,
        num_micro=num_micro,
        in_flight=in_flight,
    )


@pytest.mark.parametrize("schedule", list(ScheduleKind))
@pytest.mark.parametrize("recompute", [False, True])
def test_no_simulated_stage_holds_more_than_memory_is_planned_for(
    schedule: ScheduleKind, recompute: bool
) -> None:
    for num_stages, num_micro, in_flight in product(range(1, 5), range(1, 8), (0, 2)):
        stages = [timing(recompute=recompute, in_flight=in_flight) for _ in range(num_stages)]
        link = Boundary(serial_s=0.25, latency_s=3.0)
        asked = Pipeline(
            schedule=schedule,
            stages=tuple(stages),
            boundaries=(link,) * (num_stages - 1),
            micro_batches=(num_micro,),
            agreement_s=0.0,
        )
        for s, ran in enumerate(timeline(asked, num_micro)):
            planned_for = held(
                schedule,
                stages_left=num_stages - s,
                num_micro=num_micro,
                in_flight=in_flight,
                stages=num_stages,
            )
            ends = OpKind.WEIGHT if schedule is ScheduleKind.ZERO_BUBBLE else OpKind.BACKWARD
            assert peak(ran, OpKind.FORWARD, ends) <= planned_for.held
            assert peak(ran, OpKind.RECOMPUTE, ends) <= planned_for.recomputed


def timing(*, recompute: bool, in_flight: int) -> StageTiming:
    return StageTiming(
        forward_s=1.0,
        backward_s=2.0,
        recompute=recompute,
        reduction_s=0.0,
        optimizer_s=0.0,
        in_flight=in_flight,
    )


def peak(ran: Sequence[TimedOp], begins: OpKind, ends: OpKind) -> int:
    change = {begins: 1, ends: -1}
    return max(accumulate(change.get(one.op.kind, 0) for one in ran))


def test_the_peak_is_the_sum_of_its_parts() -> None:
    work = workload(profile(COSTS), 2)
    resident = residency(batch(1), replicas=1, held=3)
    # Two segments: 3 x 200 parameters and gradients, 400 optimizer, messages 2 x 10 + 10.
    fixed = 3 * 200 + 400 + 30
    assert peak_bytes(work, 1, 3, resident, recompute=False) == fixed + 3 * (2000 + 10)
    assert peak_bytes(work, 1, 3, resident, recompute=True) == fixed + 3 * 10 + 2000


def test_the_last_stage_holds_data_for_its_loss() -> None:
    (at,) = profile(COSTS).by_micro_batch
    fed = replace(profile(COSTS), by_micro_batch=(replace(at, input_bytes=70),))
    resident = residency(batch(1), replicas=1, held=3)

    def added(first: int, last: int) -> float:
        peaks = [
            peak_bytes(workload(each, 2), first, last, resident, recompute=False)
            for each in (fed, profile(COSTS))
        ]
        return float(peaks[0] - peaks[1])

    assert [added(1, 3), added(1, 4), added(0, 2)] == [0, (3 + 1) * 70, (3 + 2) * 70]


@pytest.mark.parametrize("virtual", range(1, 40))
@pytest.mark.parametrize("replicas", range(1, 9))
def test_no_replica_ever_holds_more_sums_than_are_counted(virtual: int, replicas: int) -> None:
    for replica in range(min(replicas, virtual)):
        owned = share(virtual, replicas, replica)
        complete = [len(owned_nodes(virtual, range(owned.start, at))) for at in owned]
        assert 1 + max(complete, default=0) <= most_sums(virtual, replicas)


def test_the_middle_of_an_op_counts_where_it_is_highest() -> None:
    wide = [replace(COSTS[0], workspace_bytes=1500), COSTS[1], replace(COSTS[2], workspace_bytes=300)]
    resident = residency(batch(1), replicas=1, held=1)
    work, plain = workload(profile(wide), 2), workload(profile(COSTS[:3]), 2)

    def added(first: int, last: int) -> float:
        peaks = [peak_bytes(each, first, last, resident, recompute=False) for each in (work, plain)]
        return float(peaks[0] - peaks[1])

    assert [added(0, 1), added(0, 2), added(0, 3), added(1, 3)] == [1500, 500, 300, 300]


def test_replicas_that_share_the_optimizer_hold_a_part_each() -> None:
    resident = residency(batch(4), replicas=4, held=1)
    whole, shared = (workload(profile(COSTS), 2, shard_optimizer=shared) for shared in (False, True))
    saved = peak_bytes(whole, 0, 2, resident, recompute=False) - peak_bytes(
        shared, 0, 2, resident, recompute=False
    )
    assert saved == 400 * 3 / 4


@pytest.mark.parametrize(("kind", "optimizer_bytes"), [("cpu:avx2", 400), ("cuda:NVIDIA H200", 0)])
def test_an_offloaded_optimizer_leaves_a_gpu_and_not_a_cpu(kind: str, optimizer_bytes: int) -> None:
    measured = replace(profile(COSTS), device_kind=kind)
    work = workload(measured, 2, offload_optimizer=True)
    assert work.optimizer_bytes[2] == optimizer_bytes


def test_activations_scale_with_the_micro_batch_and_parameters_do_not() -> None:
    kept = residency(batch(1), replicas=1, held=1)
    small, large = (workload(profile(COSTS), size) for size in (2, 4))
    grown = peak_bytes(large, 1, 2, kept, recompute=False) - peak_bytes(small, 1, 2, kept, recompute=False)
    assert grown == 1000 + 10 + 2 * 10 + 10


def test_a_node_with_less_memory_gets_a_stage_that_fits_or_none() -> None:
    costs = [segment(param_bytes=100 * 2**20) for _ in range(6)]
    weak = PlannableNode(node="weak", slots=1, memory_bytes=int(0.6 * 2 * GIB), device_kind="cpu:avx2")
    asked = request(job(virtual_replicas=1), costs, [weak, *nodes(2, memory_bytes=2 * GIB)])
    check_invariants(asked, planned(asked)[0])
