"""The core's views and the database's rows as messages; pure."""

from dataclasses import asdict

from varuna_manager.core.views import JobView, NodeView
from varuna_manager.rows import PlanRow, StepRow, StepTotals, StoredEvent
from varuna_manager.sizing.status import PoolView
from varuna_runtime.spec import canonical
from varuna_runtime.wire.v1 import client_pb2


def job_status(view: JobView, totals: StepTotals | None) -> client_pb2.JobStatus:
    """Return the message of a job; what the database knows of its steps outlives a restart."""
    return client_pb2.JobStatus(
        job=view.job,
        name=view.name,
        state=view.state,
        reason=view.reason,
        generation=view.generation,
        layout=view.layout,
        nodes=view.nodes,
        step=view.step,
        durable_step=view.durable_step,
        num_steps=view.num_steps,
        loss=totals.last_loss if totals else view.loss,
        samples_per_s=view.samples_per_s,
        eta_s=view.eta_s,
        submitted_at=view.submitted_at,
        ended_at=view.ended_at,
        replayed_steps=totals.replayed_steps if totals else 0,
        weights_sha256=view.weights_sha256,
        user=view.user,
        job_json=canonical.dumps(view.spec),
        batch_json=b"" if view.batch is None else canonical.dumps(view.batch),
        morphs=view.morphs,
        recoverable_step=view.recoverable_step,
        durable_at=view.durable_at,
    )


def node_status(view: NodeView, pool: str) -> client_pb2.NodeStatus:
    """Return the message of a node; `pool` is empty where no provider lists it any more."""
    return client_pb2.NodeStatus(
        node=view.node,
        state=view.state,
        reason=view.reason,
        incarnation=view.incarnation,
        slots=view.slots,
        device_kind=view.device_kind,
        job=view.job,
        ranks=view.ranks,
        notice_in_s=view.notice_in_s,
        notices=view.notices,
        pid=view.pid,
        pool=pool or view.pool,
        copies=[client_pb2.Copies(**asdict(held)) for held in view.copies],
    )


def pool_status(view: PoolView) -> client_pb2.PoolStatus:
    """Return the message of a pool: the fields have the same names."""
    return client_pb2.PoolStatus(**asdict(view))


def event_record(stored: StoredEvent) -> client_pb2.EventRecord:
    """Return the message of an event line."""
    line = stored.line
    return client_pb2.EventRecord(
        id=stored.id,
        at=line.at_s,
        job=line.job,
        node=line.node,
        generation=line.generation,
        what=line.what,
        who=line.who,
        why=line.why,
    )


def step_record(row: StepRow) -> client_pb2.StepRecord:
    """Return the message of a committed step."""
    return client_pb2.StepRecord(
        step=row.step,
        generation=row.generation,
        loss_hex=row.loss_hex,
        loss=row.loss,
        samples=row.samples,
        step_s=row.step_s,
        at=row.at_s,
    )


def plan_reply(row: PlanRow) -> client_pb2.PlanReply:
    """Return the message of an answer of the planner."""
    return client_pb2.PlanReply(
        plan_json=row.plan_json,
        reason=row.reason,
        change=row.change,
        explanation_json=row.explanation_json,
    )
