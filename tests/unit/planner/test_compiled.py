import subprocess
import sys
from dataclasses import replace

import pytest

from tests.support.pipelines import random_pipeline, uniform
from varuna_manager.planner import compiled, event_loop
from varuna_manager.planner.groups import groups, whole
from varuna_manager.planner.simulate import simulate
from varuna_runtime.spec.layout import ScheduleKind


@pytest.mark.parametrize("first", range(0, 1000, 100))
def test_compiled_simulations_equal_the_plain_loop_to_the_last_bit(first: int) -> None:
    for number in range(first, first + 100):
        candidate = random_pipeline(number)
        for group in (*groups(candidate), *groups(candidate, number), whole(candidate, number)):
            plain = [rank.free_s for rank in event_loop.run(candidate, group)]
            assert compiled.ends(candidate, group) == plain, f"case {number}, {group}"


@pytest.mark.parametrize("schedule", [ScheduleKind.ONE_F_ONE_B, ScheduleKind.WORK_CONSERVING])
def test_no_number_of_micro_batches_is_cut_off(schedule: ScheduleKind) -> None:
    """The original tool's generator silently stopped at 20,000 ticks."""
    assert simulate(replace(uniform(10_000), schedule=schedule)).step_s == 3.0 * 10_003


def test_a_small_simulation_does_not_load_numba() -> None:
    script = (
        "import sys\n"
        "from tests.support.pipelines import uniform\n"
        "from varuna_manager.planner.simulate import simulate\n"
        "simulate(uniform(64)); assert 'numba' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", script], check=True)


def test_without_numba_large_simulations_take_the_plain_loop() -> None:
    script = (
        "import sys; sys.modules['numba'] = None\n"
        "from tests.support.pipelines import uniform\n"
        "from varuna_manager.planner.simulate import simulate\n"
        "assert simulate(uniform(3000)).step_s == 3.0 * 3003"
    )
    subprocess.run([sys.executable, "-c", script], check=True)
