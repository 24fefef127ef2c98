"""Members that leave by notice or drain: who they are, and when work must begin to move off them. Reads only.

A noticed member is worth as much as any other until it goes, so the job trains on it for as long as a drain
is still safe.
"""

from collections.abc import Iterator

from varuna_manager.core import copies
from varuna_manager.core.phases import JobPhase, NodePhase
from varuna_manager.core.state import Job, Node, Run, State, Timer


def leaving(state: State, run: Run) -> tuple[Node, ...]:
    """Return the connected members with work that nothing new is planned on, by name."""
    members = (state.nodes[name] for name in sorted(run.members) if run.unstopped(name))
    return tuple(n for n in members if n.is_connected and not n.is_plannable)


def who(state: State, run: Run) -> str:
    """Return who leaves and why; an empty string if nobody does."""
    return ", ".join(f"{n.node} ({n.reason})" for n in leaving(state, run))


def reason(state: State, run: Run) -> str:
    """Return the reason of a morph for those who leave; an empty string if nobody does."""
    names = who(state, run)
    is_notice = any(state.nodes[name].notice_deadline_s is not None for name in run.members)
    kind = "PREEMPTED: leaving" if is_notice else "leaving"
    return f"{kind}: {names}" if names else ""


def due(state: State, job: Job, run: Run, at_s: float) -> tuple[Node, ...]:
    """Return the members that work must move off now, by name; reads durable state only."""
    soon_s = at_s + lead_s(state, job, run)
    return tuple(
        node
        for node in leaving(state, run)
        if node.is_due or node.phase is not NodePhase.NOTICED or (node.notice_deadline_s or 0.0) <= soon_s
    )


def drain_until_s(state: State, job: Job, run: Run, at_s: float) -> float:
    """Return when a drain that is asked for now must be over; reads durable state only.

    A notice that is far off gives it no longer than it has without one: a drain that hangs must be seen.
    """
    members = (state.nodes[name] for name in run.members)
    noticed = [
        (n.notice_deadline_s, n.is_due and not n.is_urgent)
        for n in members
        if n.notice_deadline_s is not None
    ]
    usual_s = at_s + max(state.config.drain_timeout_s, lead_s(state, job, run))
    if not noticed:
        return usual_s
    nearest_s, is_in_time = min(noticed)
    until_s = nearest_s - state.config.notice_margin_s
    return until_s if is_in_time else min(until_s, usual_s)


def drain_at_s(state: State, node: Node) -> float | None:
    """Return when the job that trains on a noticed node begins to drain; None if none does or it is due."""
    if node.notice_deadline_s is None or node.is_due or node.drain_user is not None:
        return None
    for job in state.iter_open():
        run = job.run
        if job.phase is JobPhase.RUNNING and run and run.members.get(node.node) == node.incarnation:
            return node.notice_deadline_s - lead_s(state, job, run, _heard_step_s(state, job))
    return None


def timers(state: State) -> Iterator[Timer]:
    """Yield when the drains for the notices of members begin."""
    for node in state.nodes.values():
        at_s = None if node.is_gone else drain_at_s(state, node)
        if at_s is not None:
            yield Timer(subject=f"notice:{node.node}", deadline_s=at_s)


def _heard_step_s(state: State, job: Job) -> float:
    progress = state.seen.progress.get(job.job)
    return progress.step_s if progress and progress.generation == job.generation else 0.0


def lead_s(state: State, job: Job, run: Run, heard_step_s: float = 0.0) -> float:
    """Return how long before the end of a node a drain must begin.

    The slower of the predicted and the heard step counts: too early costs little, too late the work.
    """
    config = state.config
    stop_s = config.drain_guess_s
    took_s = job.drain_s if copies.must_persist(state, job, run) else job.kept_drain_s
    if took_s is not None:
        stop_s = max(config.drain_floor_s, config.drain_headroom * took_s)
    step_s = max(run.plan.predicted_step_s, heard_step_s)
    return config.notice_margin_s + stop_s + config.drain_steps * step_s
