from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support import event_queue
from varuna_manager.planner.bounds import SLACK, pipeline_bound_s
from varuna_manager.planner.pipeline import Boundary, Pipeline, StageTiming
from varuna_manager.planner.simulate import Simulation, simulate, stage_ends, timeline
from varuna_runtime.spec.layout import ScheduleKind
from varuna_runtime.spec.schedule import OpKind

GPIPE, ONE_F_ONE_B = ScheduleKind.GPIPE, ScheduleKind.ONE_F_ONE_B


def uniform(
    schedule: ScheduleKind,
    stages: int,
    micro_batches: tuple[int, ...],
    *,
    serial_s: float = 0.0,
    latency_s: float = 0.0,
    recompute: bool = False,
    reduction_s: float = 0.0,
    optimizer_s: float = 0.0,
    agreement_s: float = 0.0,
) -> Pipeline:
    return Pipeline(
        schedule=schedule,
        stages=tuple(
            StageTiming(
                forward_s=1.0,
                backward_s=2.0,
                recompute=recompute and s < stages - 1,
                reduction_s=reduction_s,
                optimizer_s=optimizer_s,
            )
            for s in range(stages)
        ),
        boundaries=(Boundary(serial_s=serial_s, latency_s=latency_s),) * (stages - 1),
        micro_batches=micro_batches,
        agreement_s=agreement_s,
    )


WHOLE = [kind for kind in ScheduleKind if kind is not ScheduleKind.ZERO_BUBBLE]


@pytest.mark.parametrize("schedule", WHOLE)
@pytest.mark.parametrize(("stages", "micro"), [(1, 1), (1, 5), (2, 1), (3, 2), (4, 4), (4, 16)])
def test_free_links_cost_the_textbook_bubble(schedule: ScheduleKind, stages: int, micro: int) -> None:
    assert simulate(uniform(schedule, stages, (micro,))).step_s == 3.0 * (micro + stages - 1)


def test_latency_is_paid_once_each_way_under_gpipe_and_every_round_under_1f1b() -> None:
    # By hand, P=2 M=2 latency 1: F0 [0,1] arrives 2, F [2,3] B [3,5] arrives 6 ...
    assert simulate(uniform(GPIPE, 2, (2,), latency_s=1.0)).step_s == 11.0
    assert simulate(uniform(ONE_F_ONE_B, 2, (2,), latency_s=1.0)).step_s == 11.0
    gpipe = simulate(uniform(GPIPE, 2, (8,), latency_s=1.0)).step_s
    one_f_one_b = simulate(uniform(ONE_F_ONE_B, 2, (8,), latency_s=1.0)).step_s
    assert gpipe == 3.0 * 9 + 2.0
    assert one_f_one_b > gpipe


@pytest.mark.parametrize(("stages", "micro"), [(1, 1), (1, 5), (2, 1), (4, 4), (4, 16)])
def test_a_split_backward_leaves_no_bubble_but_the_first_forwards(stages: int, micro: int) -> None:
    """And, with few micro-batches, the way of the last gradient back to the first stage."""
    assert simulate(uniform(ScheduleKind.ZERO_BUBBLE, stages, (micro,))).step_s == max(
        stages - 1 + 3.0 * micro, 3.0 + 2 * (stages - 1)
    )


def test_slow_links_and_recompute_cost_what_another_simulator_gave() -> None:
    def ratio(schedule: ScheduleKind, stages: int, serial_s: float, *, recompute: bool) -> float:
        asked = uniform(schedule, stages, (128,), serial_s=serial_s, recompute=recompute)
        return round(simulate(asked).step_s / (128 * 3.0), 3)

    assert ratio(ONE_F_ONE_B, 8, 0.5, recompute=False) == 1.362
    assert ratio(ScheduleKind.EAGER, 8, 0.5, recompute=True) == 1.398
    assert ratio(ScheduleKind.WORK_CONSERVING, 8, 0.5, recompute=True) == 1.398
    assert ratio(ScheduleKind.WORK_CONSERVING, 8, 2.0, recompute=False) == 1.128


@pytest.mark.parametrize("schedule", list(ScheduleKind))
@pytest.mark.parametrize("stages", [2, 3, 5])
def test_a_stage_starts_as_soon_as_its_first_activation_is_there(schedule: ScheduleKind, stages: int) -> None:
    """And not after a second forward of the stage before (sail-sg/zero-bubble-pipeline-parallelism#73)."""
    ran = timeline(uniform(schedule, stages, (6,), serial_s=0.25, latency_s=0.5), 6)
    assert [stage[0].op.kind for stage in ran] == [OpKind.FORWARD] * stages
    assert [stage[0].start_s for stage in ran] == [s * 1.75 for s in range(stages)]


def test_a_slow_link_is_a_machine_of_its_own() -> None:
    # Four messages of 10 s down the same wire: the last activation cannot arrive before 1 + 4 x 10.
    slow = uniform(GPIPE, 2, (4,), serial_s=10.0)
    assert stage_ends(slow, 4)[1] >= 41.0 + 1.0 + 2.0


def test_recompute_adds_one_forward_per_micro_batch_except_on_the_last_stage() -> None:
    # P=2 M=1: F0 [0,1] F1 [1,2] B1 [2,4] meanwhile R0 [1,2] then B0 [4,6].
    assert simulate(uniform(ONE_F_ONE_B, 2, (1,), recompute=True)).step_s == 6.0
    assert simulate(uniform(ONE_F_ONE_B, 1, (4,), recompute=True)).step_s == 12.0


def test_the_replica_with_more_micro_batches_sets_the_pace() -> None:
    assert simulate(uniform(GPIPE, 2, (3, 4, 3))).step_s == simulate(uniform(GPIPE, 2, (4,))).step_s


def test_a_short_last_micro_batch_takes_its_share_of_the_time() -> None:
    one = replace(uniform(GPIPE, 1, (4,)), last_compute=0.25)
    assert simulate(one) == Simulation(step_s=9.75, busy_s=(9.75,))
    # By hand, P=2 M=2: F0 [0,1] F1 [1,1.5], then F0 [1,2] F1 [2,2.5] B0 [2.5,4.5] B1 [4.5,5.5] behind it.
    two = replace(uniform(GPIPE, 2, (2,)), last_compute=0.5)
    assert simulate(two).step_s == 7.5
    # Messages of 4 s, the last of 1 s: activations arrive at 5 and 6, gradients at 13 and 14.
    messages = replace(uniform(GPIPE, 2, (2,), serial_s=4.0), last_bytes=0.25)
    assert simulate(messages).step_s == 17.0


def test_a_short_micro_batch_of_the_last_replica_does_not_speed_up_the_others() -> None:
    whole, ragged = (
        replace(uniform(ONE_F_ONE_B, 2, (4, 4)), last_compute=factor, last_bytes=factor)
        for factor in (1.0, 0.5)
    )
    assert simulate(ragged).step_s == simulate(whole).step_s
    assert simulate(replace(ragged, micro_batches=(3, 4))).step_s < simulate(whole).step_s


def test_reduction_of_a_late_stage_hides_behind_the_backwards_of_earlier_ones() -> None:
    without = simulate(uniform(ONE_F_ONE_B, 3, (3,))).step_s
    timed = uniform(ONE_F_ONE_B, 3, (3,), reduction_s=0.5, optimizer_s=0.25, agreement_s=0.125)
    assert simulate(timed).step_s == without + 0.5 + 0.25 + 0.125
    assert stage_ends(timed, 3)[2] < stage_ends(timed, 3)[0]


def test_bubble_share_is_the_idle_part_of_a_slots_time() -> None:
    result = simulate(uniform(GPIPE, 4, (4,)))
    assert result.busy_s == (12.0,) * 4
    assert result.bubble_share == pytest.approx(3 / 7)


times = st.integers(0, 40).map(lambda n: n / 8)
durations = st.integers(1, 40).map(lambda n: n / 8)  # two choices at one moment have no order


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    count = draw(st.integers(1, 6))
    in_flight = draw(st.sampled_from([0, 1, 4]))
    return Pipeline(
        schedule=draw(st.sampled_from(list(ScheduleKind))),
        stages=tuple(
            StageTiming(
                forward_s=draw(durations),
                backward_s=draw(durations),
                recompute=draw(st.booleans()) and s < count - 1,
                reduction_s=draw(times),
                optimizer_s=draw(times),
                in_flight=in_flight,
            )
            for s in range(count)
        ),
        boundaries=tuple(Boundary(serial_s=draw(times), latency_s=draw(times)) for _ in range(count - 1)),
        micro_batches=tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3))),
        agreement_s=draw(times),
    )


@given(pipelines())
@settings(max_examples=300, deadline=None, derandomize=True)
def test_looking_when_something_comes_equals_a_queue_of_all_events(candidate: Pipeline) -> None:
    for num_micro in candidate.micro_batches:
        assert stage_ends(candidate, num_micro) == event_queue.stage_ends(candidate, num_micro)


@given(pipelines(), st.sampled_from([1.0, 0.5, 0.125]), st.sampled_from([1.0, 0.5, 0.125]))
@settings(max_examples=300, deadline=None, derandomize=True)
def test_no_simulation_beats_the_lower_bound(
    candidate: Pipeline, last_compute: float, last_bytes: float
) -> None:
    if sum(candidate.micro_batches) > 1:
        candidate = replace(candidate, last_compute=last_compute, last_bytes=last_bytes)
    assert simulate(candidate).step_s >= pipeline_bound_s(candidate) * (1 - SLACK)
