"""What a node may say about a job: only what concerns its own part of it; pure."""

from varuna_manager.core.state import Job, State


def may_report(state: State, node: str, *, job: str, generation: int, rank: int | None = None) -> bool:
    """Return whether `node` may report on that generation; without a `rank`, on all of it.

    Of the current generation each rank is known to be on one node. What is said of older ones changes
    little, but comes from nodes that work on the job.
    """
    return is_of(state, node, job=job) and _is_its(state.jobs[job], node, generation, rank)


def may_log(state: State, node: str, *, job: str, generation: int, rank: int) -> bool:
    """Return whether `node` may add to that log: a node that was lost still has its last lines to send."""
    found = state.jobs.get(job)
    if found is None or not _is_its(found, node, generation, rank if rank >= 0 else None):
        return False
    known = state.nodes.get(node)
    return is_of(state, node, job=job) or (known is not None and known.is_gone)


def is_of(state: State, node: str, *, job: str) -> bool:
    """Return whether the job was ever given to the node, which has not been lost since."""
    found = state.jobs.get(job)
    return found is not None and (node in found.touched or node in found.hosts)


def _is_its(job: Job, node: str, generation: int, rank: int | None) -> bool:
    run = job.run
    if run is None or run.number != generation:
        return 0 <= generation <= job.generation
    if rank is None:
        return node in run.members
    return rank in run.ranks and run.plan.placement[rank].node == node
