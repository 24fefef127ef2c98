"""How many nodes the jobs ask for: those of the job that holds the pool, else of the next in turn."""

from dataclasses import dataclass

from varuna_manager.core.phases import HOLDING, WAITING, JobPhase
from varuna_manager.core.state import Job, Node, State
from varuna_manager.sizing.memory import Memory
from varuna_runtime.spec.job import Exactness

PROBE_S = 3600.0
"""A ceiling is doubted after this long, then after twice as long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """Nodes wanted in all; none without a job."""

    job: Job | None
    nodes: int

    @property
    def max_price(self) -> float | None:
        """Dollars per hour that the job allows for all nodes together."""
        return None if self.job is None else self.job.spec.max_price

    def is_unfit(self, node: Node) -> bool:
        """Return True if the job is pinned to another kind of device than the node has."""
        return self.is_unfit_kind(node.device_kind)

    def is_unfit_kind(self, kind: str) -> bool:
        """Return True if the job is pinned to another kind of device."""
        job = self.job
        is_pinned = job is not None and job.batch is not None and job.spec.exactness is Exactness.BITWISE
        return job is not None and is_pinned and bool(kind) and kind != job.device_kind


def demand(memory: Memory, state: State) -> Demand:
    """Return what is wanted now. A job that is being cancelled, or is over, wants nothing."""
    for job in _in_order(state):
        ceiling = memory.ceilings.get(job.job)
        useful = None if ceiling is None else ceiling.nodes
        nodes = job.spec.nodes.max if useful is None else min(useful, job.spec.nodes.max)
        if nodes > 0:
            return Demand(job=job, nodes=nodes)
    return Demand(job=None, nodes=0)


def _in_order(state: State) -> list[Job]:
    """Return the job that holds the pool, then those that wait; whether the planner refused one is no matter.

    A refusal holds for the present pool only, and it is the pool that is decided on here.
    """
    open_jobs = [job for job in state.iter_open() if job.phase is not JobPhase.CANCELLING]
    holders = [job for job in open_jobs if job.phase in HOLDING]
    waiting = [job for job in open_jobs if job.phase in WAITING]
    return holders + sorted(waiting, key=lambda job: (-job.spec.priority, job.seq))


def signature(state: State) -> tuple[object, ...]:
    """Return what a pass should follow at once when it changes."""
    wanted = demand(Memory(), state)
    return (wanted.job.job if wanted.job else "", wanted.nodes, tuple(state.ending))
