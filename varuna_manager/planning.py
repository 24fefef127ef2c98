"""The planner in a process of its own, so that a long search never delays a heartbeat."""

import asyncio
import ctypes
import multiprocessing
import os
import signal
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool

from varuna_manager.planner import plan
from varuna_manager.planner.request import PlanOutcome, PlanRequest
from varuna_runtime.spec.layout import Infeasible

_PR_SET_PDEATHSIG = 1


class PlanningProcess:
    """Answers plan requests one after the other; the process dies with the manager."""

    def __init__(self) -> None:
        self._pool: ProcessPoolExecutor | None = None

    async def plan(self, request: PlanRequest) -> PlanOutcome:
        """Return the planner's answer; a planner that dies twice is an Infeasible that says so."""
        for _ in range(2):
            try:
                return await asyncio.wrap_future(self._started().submit(plan, request))
            except BrokenProcessPool:
                self.close()
        reason = "the planning process died twice on this request, most likely for want of memory"
        return PlanOutcome(
            outcome=Infeasible(reason=reason, change="free memory on the manager's machine"), explanation=None
        )

    def start(self) -> Future[int]:
        """Start the process now, so that the first plan does not wait for imports; answers its pid."""
        return self._started().submit(os.getpid)

    def close(self) -> None:
        """End the process."""
        if self._pool is not None:
            self._pool.shutdown(wait=False, cancel_futures=True)
            self._pool = None

    def _started(self) -> ProcessPoolExecutor:
        if self._pool is None:
            self._pool = ProcessPoolExecutor(
                max_workers=1,
                mp_context=multiprocessing.get_context("spawn"),
                initializer=_die_with_parent,
                initargs=(os.getpid(),),
            )
        return self._pool


def _die_with_parent(parent: int) -> None:
    """Leave no orphan behind a killed manager; see PR_SET_PDEATHSIG in prctl(2)."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        os.kill(os.getpid(), signal.SIGKILL)
