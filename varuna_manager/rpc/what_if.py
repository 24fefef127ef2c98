"""The question what a job would get by another objective: as a message, and as the planner is asked it."""

from dataclasses import replace

from varuna_manager.core import pace
from varuna_manager.core.change import Change
from varuna_manager.core.outlook import outlook
from varuna_manager.core.pool import usable
from varuna_manager.core.state import Job, State
from varuna_manager.planner.outlook import LossRate, Outlook
from varuna_manager.planner.request import PlanRequest
from varuna_runtime.spec.errors import Conflict, InvalidInput
from varuna_runtime.spec.job import Objective
from varuna_runtime.wire.v1 import client_pb2


def asking(
    asked: client_pb2.PlanRequest, objective: Objective | None, losses: LossRate | None
) -> client_pb2.PlanRequest:
    """Return the message with the question in it; without an objective it asks for the plan in use."""
    asked.objective = objective or ""
    if losses is not None:
        asked.losses_per_node_s = losses.per_node_s
        asked.burst_weights.extend(losses.burst_weights)
    return asked


def plan_request(state: State, job: Job, asked: client_pb2.PlanRequest, now_s: float) -> PlanRequest:
    """Return the question for the nodes that are there now; Conflict before the job was ever profiled."""
    if asked.objective not in list(Objective):
        wanted = ", ".join(Objective)
        raise InvalidInput(f"objective: seen {asked.objective!r}, wanted one of {wanted}")
    if job.profile is None:
        raise Conflict(f"job {job.job} has no profile yet: {job.phase}, {job.reason}")
    nodes = usable(state, job)
    return PlanRequest(
        spec=job.spec.model_copy(update={"objective": Objective(asked.objective)}),
        model=job.model,
        profile=job.profile,
        nodes=pace.as_request(Change(state, now_s), job, nodes),
        batch=job.batch,
        outlook=_with(asked, outlook(state, job, nodes, now_s)),
    )


def _with(asked: client_pb2.PlanRequest, seen: Outlook) -> Outlook:
    if not asked.HasField("losses_per_node_s"):
        return seen
    weights = tuple(asked.burst_weights) or (1.0,)
    return replace(seen, losses=LossRate(per_node_s=asked.losses_per_node_s, burst_weights=weights))
