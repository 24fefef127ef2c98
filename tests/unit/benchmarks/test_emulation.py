from dataclasses import replace

import pytest
import torch

from benchmarks.emulated import First, Pace, Times, Work
from benchmarks.emulation import (
    KEEN,
    MIDDLE,
    ONE,
    P4,
    P4D2,
    P8,
    RAMP,
    SEGMENTS,
    SPLIT,
    UNIT_S,
    Constants,
    Emulation,
    Job,
    Lone,
    emulations,
    pipeline_of,
    predicted_s,
)
from varuna_runtime.spec.layout import ScheduleKind
from varuna_runtime.spec.profile import LinkCost
from varuna_runtime.spec.schedule import OpKind

FREE = LinkCost(latency_s=0.0, bandwidth_bps=1e30)


def constants(*chosen: Emulation, link: LinkCost = FREE, beyond_s: float = 0.0) -> Constants:
    lone = Lone(beyond_s=dict.fromkeys(OpKind, beyond_s), beside_s=0.5)
    return Constants(
        link=link,
        send_s={one.job.message_bytes: 0.0 for one in chosen},
        lone={one.stage_size: lone for one in chosen},
    )


def test_a_free_line_leaves_the_textbook_time_and_what_is_beside_the_ops() -> None:
    one = Emulation(job=Job(width=MIDDLE), layout=P4, schedule=ONE)
    micro_s = 3 * UNIT_S * SEGMENTS / 4
    assert predicted_s(one, constants(one)) == pytest.approx((12 + 3) * micro_s + 0.5)


def test_what_an_op_costs_beyond_its_sleep_counts_once_an_op() -> None:
    one = Emulation(job=Job(width=MIDDLE), layout=P8, schedule=ONE)
    plain, beyond = predicted_s(one, constants(one)), predicted_s(one, constants(one, beyond_s=0.01))
    assert beyond - plain == pytest.approx((12 + 7) * 2 * 0.01)
    split = replace(one, schedule=SPLIT)
    stage = pipeline_of(split, constants(split, beyond_s=0.01)).stages[1]
    assert stage.backward_s == pytest.approx(2 * UNIT_S + 2 * 0.01)


def test_uneven_segments_make_uneven_stages_of_the_same_work() -> None:
    job = Job(width=MIDDLE, pace=RAMP)
    one = Emulation(job=job, layout=P4, schedule=ONE)
    forward_s = [stage.forward_s for stage in pipeline_of(one, constants(one)).stages]
    assert forward_s == sorted(forward_s)
    assert forward_s[0] < forward_s[-1]
    assert sum(forward_s) == pytest.approx(SEGMENTS * UNIT_S)


def test_replicas_share_the_micro_batches_and_sum_their_gradients() -> None:
    link = LinkCost(latency_s=0.0, bandwidth_bps=8e6)
    one = Emulation(job=Job(width=1, num_weights=250_000, samples=13), layout=P4D2, schedule=KEEN)
    candidate = pipeline_of(one, constants(one, link=link))
    assert sorted(candidate.micro_batches) == [6, 7]
    assert candidate.stages[0].reduction_s == pytest.approx(2.0)  # two segments of 1 MB, 1 MB/s


def test_activations_and_gradients_of_a_stage_leave_by_one_interface() -> None:
    job = Job(width=MIDDLE)
    one = Emulation(job=job, layout=P4, schedule=ONE)
    micro_s = 3 * UNIT_S * SEGMENTS / 4
    link = LinkCost(latency_s=0.0, bandwidth_bps=8 * job.message_bytes / micro_s)
    busiest_s = 2 * job.samples * micro_s  # a stage in the middle sends two messages a micro-batch
    assert predicted_s(one, constants(one, link=link)) > busiest_s


def test_only_stages_before_the_last_recompute() -> None:
    one = Emulation(job=Job(width=1), layout=P4, schedule=ONE, recompute=True)
    assert [s.recompute for s in pipeline_of(one, constants(one)).stages] == [True, True, True, False]


def test_emulations_cover_every_program_and_have_names_of_their_own() -> None:
    every = emulations()
    assert {one.schedule for one in every} == set(ScheduleKind)
    assert {(one.layout.stages, one.layout.replicas) for one in every} == {(4, 1), (8, 1), (4, 2), (8, 2)}
    assert any(one.job.samples < one.layout.stages for one in every)
    assert any(one.job.samples % one.job.rows for one in every)
    assert len({str(one) for one in every}) == len(every)


def test_fewer_rows_take_less_time() -> None:
    slept: list[float] = []

    class Recorded(Pace):
        def sleep(self, seconds: float) -> None:
            slept.append(seconds)

    times = Times(forward_s=1.0, input_s=2.0, weight_s=4.0)
    work = Work(times, Recorded(), rows=2, num_weights=3)
    First(times, Recorded(), 4, rows=2)(torch.zeros(2, 1))
    work(torch.zeros(1, 4, requires_grad=True)).sum().backward()
    assert slept[0] == 1.0
    assert slept[1] == 0.5
    assert sorted(slept[2:]) == [1.0, 2.0]
    assert work.weight.grad is not None
    assert work.weight.grad.shape == (3,)
