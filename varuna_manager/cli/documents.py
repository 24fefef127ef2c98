"""What `--json` prints, as docs/user-guide/cli.md describes it: keys are only ever added; unknown is null."""

from dataclasses import asdict
from typing import Any

from varuna_manager.client import JobStatus, NodeStatus, PlanReport, PoolStatus
from varuna_manager.planner.explain import spread
from varuna_runtime.spec.layout import Infeasible


def job_document(job: JobStatus) -> dict[str, Any]:
    """Return one job."""
    return asdict(job) | {
        "loss": job.loss if job.step else None,
        "samples_per_s": job.samples_per_s if job.samples_per_s > 0 else None,
        "eta_s": job.eta_s if job.eta_s >= 0 and not job.is_over else None,
        "ended_at": job.ended_at if job.ended_at > 0 else None,
        "durable_at": job.durable_at if job.durable_at > 0 else None,
    }


def node_document(node: NodeStatus) -> dict[str, Any]:
    """Return one node."""
    copies = [asdict(held) | {"step": held.step if held.step >= 0 else None} for held in node.copies]
    return asdict(node) | {
        "notice_in_s": node.notice_in_s if node.notice_in_s >= 0 else None,
        "copies": copies,
    }


def pool_document(pool: PoolStatus) -> dict[str, Any]:
    """Return one pool."""
    return asdict(pool) | {
        "price": pool.price if pool.price >= 0 else None,
        "retry_in_s": pool.retry_in_s if pool.retry_in_s >= 0 else None,
        "read_ago_s": pool.read_ago_s if pool.read_ago_s >= 0 else None,
    }


def plan_document(report: PlanReport) -> dict[str, Any]:
    """Return a plan, or null with the reason and what would change it."""
    outcome, why = report.outcome, report.explanation
    is_infeasible = isinstance(outcome, Infeasible)
    varies = None if why is None else spread(why)
    return {
        "plan": None if is_infeasible else asdict(outcome),
        "reason": outcome.reason if isinstance(outcome, Infeasible) else None,
        "change": outcome.change if isinstance(outcome, Infeasible) else None,
        "explanation": None if why is None else asdict(why),
        "spread": None if varies is None else asdict(varies),
    }
