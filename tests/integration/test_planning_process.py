"""The planner's own process answers, survives its death, and never outlives its owner."""

import asyncio
import os
import signal
import subprocess
import sys

from tests.support.fake_agent import profile_of
from tests.support.manager_process import eventually, model, submission
from varuna_manager.cloud.processes import identify
from varuna_manager.planner.request import PlannableNode, PlanRequest
from varuna_manager.planning import PlanningProcess
from varuna_runtime.spec.layout import Plan

REQUEST = PlanRequest(
    spec=submission("b").spec,
    model=model(),
    profile=profile_of(model()),
    nodes=(PlannableNode(node="n", slots=1, memory_bytes=2**30, device_kind="cpu:test"),),
    batch=None,
)
OWNER = """
import sys, time
from varuna_manager.planning import PlanningProcess
if __name__ == "__main__":
    planning = PlanningProcess()
    print(planning.start().result(), flush=True)
    time.sleep(60)
"""


def test_it_answers_and_a_killed_one_is_replaced() -> None:
    async def work() -> list[object]:
        planning = PlanningProcess()
        outcomes: list[object] = [(await planning.plan(REQUEST)).outcome]
        os.kill(planning.start().result(), signal.SIGKILL)
        outcomes.append((await planning.plan(REQUEST)).outcome)
        planning.close()
        return outcomes

    first, second = asyncio.run(work())
    assert isinstance(first, Plan)
    assert first == second


def test_it_dies_with_a_killed_owner() -> None:
    owner = subprocess.Popen([sys.executable, "-c", OWNER], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid = int(owner.stdout.readline())
    assert identify(pid) is not None
    owner.kill()
    owner.wait()
    owner.stdout.close()
    eventually(lambda: identify(pid) is None)
