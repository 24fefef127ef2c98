"""The accumulator of one `step`: the state so far and the actions so far. Lives only inside one call."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TypeVar

from varuna_manager.core.actions import Announce, AnyAction
from varuna_manager.core.config import CoreConfig
from varuna_manager.core.phases import (
    JOB_TRANSITIONS,
    NODE_TRANSITIONS,
    TERMINAL,
    TRAINING,
    JobPhase,
    NodePhase,
)
from varuna_manager.core.state import Job, Node, State
from varuna_manager.core.words import What

K = TypeVar("K")
V = TypeVar("V")


class Change:
    """What one durable event does; every phase change is checked against the tables."""

    def __init__(self, state: State, at_s: float) -> None:
        self.state = state
        self.at_s = at_s
        self.actions: list[AnyAction] = []

    @property
    def config(self) -> CoreConfig:
        """The thresholds."""
        return self.state.config

    def job(self, job: str) -> Job:
        """Return the job as it is by now."""
        return self.state.jobs[job]

    def put_job(self, job: Job) -> Job:
        """Store a job record, in its place in the list of open jobs."""
        jobs = {**self.state.jobs, job.job: job}
        is_open = not job.is_over or bool(job.hosts)
        was_open = job.job in self.state.open_jobs
        open_jobs = self.state.open_jobs
        if is_open and not was_open:
            open_jobs = tuple(sorted({*open_jobs, job.job}, key=lambda name: jobs[name].seq))
        elif was_open and not is_open:
            open_jobs = tuple(name for name in open_jobs if name != job.job)
        self.state = replace(self.state, jobs=jobs, open_jobs=open_jobs)
        return job

    def move_job(self, job: Job, phase: JobPhase, reason: str) -> Job:
        """Store the job in another phase; its phase deadline and its open question end with the old one."""
        assert phase in JOB_TRANSITIONS[job.phase], f"job {job.job}: {job.phase} -> {phase}"
        ended_s = self.at_s if phase in TERMINAL else None
        halted_s = None if phase is JobPhase.PARKED else job.halted_s
        if phase is JobPhase.PLANNING and job.phase in TRAINING:
            halted_s = self.at_s
        return self.put_job(
            replace(
                job,
                phase=phase,
                reason=reason,
                since_s=self.at_s,
                ended_s=ended_s,
                halted_s=halted_s,
                deadline_s=None,
                asked_version=None,
            )
        )

    def put_node(self, node: Node) -> Node:
        """Store a node record."""
        self.state = replace(self.state, nodes={**self.state.nodes, node.node: node})
        return node

    def move_node(self, node: Node, phase: NodePhase, reason: str) -> Node:
        """Store the node in another phase."""
        assert phase in NODE_TRANSITIONS[node.phase], f"node {node.node}: {node.phase} -> {phase}"
        return self.put_node(replace(node, phase=phase, reason=reason, since_s=self.at_s))

    def do(self, action: AnyAction) -> None:
        """Ask for an action."""
        self.actions.append(action)

    def announce(
        self, what: What, why: str, *, who: str = "manager", job: Job | None = None, node: str = ""
    ) -> None:
        """Add a line to the event list, under the job's newest generation."""
        name, generation = (job.job, job.generation) if job else ("", 0)
        self.do(Announce(what=what, why=why, who=who, job=name, node=node, generation=generation))


def without(mapping: Mapping[K, V], key: K) -> dict[K, V]:
    """Return the mapping less one key, which need not be there."""
    return {k: v for k, v in mapping.items() if k != key}
