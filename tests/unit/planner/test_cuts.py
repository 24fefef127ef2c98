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


@pytest.mark.parametrize("num_segments", range(1, 41))
def test_no_segment_is_lost_or_used_twice_by_any_number_of_stages(num_segments: int) -> None:
    costs = [
        segment(forward_s=0.01 * (1 + i * 7 % 5), backward_s=0.02 * (1 + i * 3 % 4))
        for i in range(num_segments)
    ]
    grid = StageGrid(workload(profile(costs), 2))
    for num_stages in range(1, num_segments + 1):
        stages = StageCutter(
            grid,
            BATCH,
            layout=Layout(stages=num_stages, replicas=1),
            schedule=ScheduleKind.ONE_F_ONE_B,
            num_micro=32,
            whole_micro=32,
            memory_bytes=UNBOUNDED,
            between=Links(boundaries=(FAST_LINK,) * (num_stages - 1), sums=SumCost(link=FAST_LINK)),
        ).stages()
        assert stages is not None
        assert len(stages) == num_stages
        assert [i for s in stages for i in range(s.first, s.last)] == list(range(num_segments))
        assert all(s.first < s.last for s in stages)
