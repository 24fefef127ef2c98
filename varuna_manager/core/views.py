"""What status and nodes show: pure functions of the state, with the fields of the client protocol."""

from dataclasses import dataclass

from varuna_manager.core import copies, departures
from varuna_manager.core.phases import GONE, JobPhase
from varuna_manager.core.pool import holder, spare_reason, waiting_reason
from varuna_manager.core.state import Job, Node, Progress, State
from varuna_runtime.spec.job import JobSpec
from varuna_runtime.spec.layout import BatchShape

UNKNOWN_S = -1.0
"""Stands for a time that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobView:
    """One job as a person sees it; times are Unix seconds, those of what has not happened yet are 0."""

    job: str
    name: str
    state: JobPhase
    reason: str
    generation: int
    layout: str
    nodes: int
    step: int
    durable_step: int
    num_steps: int
    loss: float
    samples_per_s: float
    eta_s: float
    submitted_at: float
    ended_at: float
    weights_sha256: str
    user: str
    spec: JobSpec
    batch: BatchShape | None
    morphs: int
    recoverable_step: int
    durable_at: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CopiesView:
    """What a node's memory may hold of one generation of a job; `step` is negative while none is complete."""

    job: str
    generation: int
    segments: tuple[int, ...]
    step: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeView:
    """One node as a person sees it; `notice_in_s` is negative without a notice, `pool` empty if not known."""

    node: str
    state: str
    reason: str
    incarnation: str
    slots: int
    device_kind: str
    job: str
    ranks: tuple[int, ...]
    notice_in_s: float
    notices: str
    pid: int
    pool: str
    copies: tuple[CopiesView, ...]


def job_views(state: State) -> tuple[JobView, ...]:
    """Return all jobs in order of submission."""
    return tuple(job_view(state, job) for job in sorted(state.jobs.values(), key=lambda j: j.seq))


def job_view(state: State, job: Job) -> JobView:
    """Return one job; speed, loss and ETA are of the current generation and unknown before its first step."""
    progress = state.seen.progress.get(job.job)
    plan = job.plan
    samples_per_s = _samples_per_s(job, progress)
    step = _step(job, progress)
    return JobView(
        job=job.job,
        name=job.spec.name,
        state=job.phase,
        reason=_job_reason(state, job),
        generation=job.generation,
        layout=str(plan.layout) if plan else "",
        nodes=len(job.run.members) if job.run else 0,
        step=step,
        durable_step=job.durable_step or 0,
        num_steps=job.model.num_steps,
        loss=progress.loss if progress else 0.0,
        samples_per_s=samples_per_s,
        eta_s=_eta_s(job, step, progress) if samples_per_s else UNKNOWN_S,
        submitted_at=job.submitted_s,
        ended_at=job.ended_s or 0.0,
        weights_sha256=job.weights_sha256,
        user=job.user,
        spec=job.spec,
        batch=job.batch,
        morphs=job.morphs,
        recoverable_step=min(step, copies.recoverable_step(state, job)),
        durable_at=job.durable_s or 0.0,
    )


def node_views(state: State, now_s: float) -> tuple[NodeView, ...]:
    """Return all nodes by name; `now_s` is the daemon's clock, for the time left of a notice."""
    return tuple(_node_view(state, state.nodes[name], now_s) for name in sorted(state.nodes))


def _node_view(state: State, node: Node, now_s: float) -> NodeView:
    job = holder(state)
    run = job.run if job else None
    is_member = run is not None and run.members.get(node.node) == node.incarnation and node.phase not in GONE
    deadline_s = node.notice_deadline_s
    return NodeView(
        node=node.node,
        state=node.phase,
        reason=_node_reason(state, node, now_s),
        incarnation=node.incarnation,
        slots=node.slots,
        device_kind=node.device_kind,
        job=job.job if job and is_member else "",
        ranks=run.plan.ranks_on(node.node) if run and is_member else (),
        notice_in_s=UNKNOWN_S if deadline_s is None or node.is_gone else max(0.0, deadline_s - now_s),
        notices=node.notices,
        pid=node.pid,
        pool=node.pool,
        copies=_copies(state, node),
    )


def _copies(state: State, node: Node) -> tuple[CopiesView, ...]:
    return tuple(
        CopiesView(
            job=job.job,
            generation=held.generation,
            segments=held.segments,
            step=copies.newest_step(state, job, held.generation),
        )
        for job in state.iter_open()
        for held in job.holders.get(node.node, ())
        if not node.is_gone
    )


def _job_reason(state: State, job: Job) -> str:
    if job.phase is JobPhase.PENDING:
        return waiting_reason(state, job)
    if job.phase is JobPhase.RUNNING and job.run and (leaving := departures.who(state, job.run)):
        return f"{job.reason}; soon to leave: {leaving}"
    return job.reason


def _node_reason(state: State, node: Node, now_s: float) -> str:
    drain_at_s = departures.drain_at_s(state, node)
    if drain_at_s is not None:
        return f"{node.reason}; drains in {max(0.0, drain_at_s - now_s):.0f} s"
    job = holder(state)
    run = job.run if job and job.phase is JobPhase.DRAINING else None
    if run is not None and node in departures.leaving(state, run):
        return f"{node.reason}; drains now"
    return node.reason or spare_reason(state, node)


def _step(job: Job, progress: Progress | None) -> int:
    """Committed steps: what was heard, or at least what is durable."""
    if job.phase is JobPhase.SUCCEEDED:
        return job.model.num_steps
    heard = progress.step + 1 if progress else 0
    return max(heard, job.durable_step or 0)


def _samples_per_s(job: Job, progress: Progress | None) -> float:
    is_current = progress is not None and progress.generation == job.generation
    if progress is None or not is_current or job.phase is not JobPhase.RUNNING or progress.step_s <= 0:
        return 0.0
    return job.spec.batch_size / progress.step_s


def _eta_s(job: Job, step: int, progress: Progress | None) -> float:
    return max(0, job.model.num_steps - step) * (progress.step_s if progress else 0.0)
