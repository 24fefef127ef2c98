"""Stage cuts: every segment in exactly one stage, whatever the numbers are."""

import pytest

from tests.support.planning import FAST_LINK, profile, segment
from varuna_manager.planner.grid import StageGrid
from varuna_manager.planner.stages import Links, StageCutter
from varuna_manager.planner.sums import SumCost
from varuna_manager.planner.workload import workload
from varuna_runtime.spec.layout import BatchShape, Layout, ScheduleKind

BATCH = BatchShape(batch_size=64, micro_batch_size=2, virtual_replicas=1)
UNBOUNDED = 2**60


def cutter(grid: StageGrid, num_stages: int, schedule: ScheduleKind, memory_bytes: int) -> StageCutter:
    return StageCutter(
        grid,
        BATCH,
        layout=Layout(stages=num_stages, replicas=1),
        schedule=schedule,
        num_micro=32,
        whole_micro=32,
        memory_bytes=memory_bytes,
        between=Links(boundaries=(FAST_LINK,) * (num_stages - 1), sums=SumCost(link=FAST_LINK)),
    )


@pytest.mark.parametrize("num_segments", range(1, 41))
def test_no_segment_is_lost_or_used_twice_by_any_number_of_stages(num_segments: int) -> None:
    costs = [
        segment(forward_s=0.01 * (1 + i * 7 % 5), backward_s=0.02 * (1 + i * 3 % 4))
        for i in range(num_segments)
    ]
    grid = StageGrid(workload(profile(costs), 2))
    for num_stages in range(1, num_segments + 1):
        stages = cutter(grid, num_stages, ScheduleKind.ONE_F_ONE_B, UNBOUNDED).stages()
        assert stages is not None
        assert len(stages) == num_stages
        assert [i for s in stages for i in range(s.first, s.last)] == list(range(num_segments))
        assert all(s.first < s.last for s in stages)


def test_eager_1f1b_gets_as_many_in_flight_as_there_is_room_for_and_fewer_at_each_stage() -> None:
    grid = StageGrid(workload(profile([segment()] * 10), 2))
    found: dict[int, list[int] | None] = {}
    for memory_bytes in (UNBOUNDED, 2**27, 120 * 2**20):
        eager = cutter(grid, 5, ScheduleKind.EAGER, memory_bytes)
        stages = eager.stages()
        assert stages is not None
        wide = eager.widened(stages)
        found[memory_bytes] = None if wide is None else [stage.in_flight for stage in wide]
    assert found == {UNBOUNDED: [11, 8, 6, 3, 1], 2**27: [10, 7, 5, 3, 1], 120 * 2**20: None}


def test_no_other_schedule_gets_more_than_by_nature() -> None:
    grid = StageGrid(workload(profile([segment()] * 10), 2))
    for schedule in (ScheduleKind.ONE_F_ONE_B, ScheduleKind.WORK_CONSERVING):
        one = cutter(grid, 5, schedule, UNBOUNDED)
        stages = one.stages()
        assert stages is not None
        assert one.widened(stages) is None
