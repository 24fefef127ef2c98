"""What happens to nodes: joins, returns, losses, notices, drains. Facts only; `reconcile` acts on them."""

from collections.abc import Iterable
from dataclasses import replace

from varuna_manager.core import copies, departures, failures, generations, warmth
from varuna_manager.core.actions import AbortRanks, FenceNode, ReleaseNode
from varuna_manager.core.change import Change, without
from varuna_manager.core.events import (
    DeadlinePassed,
    ManagerStarted,
    NodeDisconnected,
    NodeDrainRequested,
    NodeJoined,
    NodeLeft,
    NoticeCancelled,
    NoticeHinted,
    NoticeReceived,
    NoticesChanged,
    ReleaseDecided,
)
from varuna_manager.core.phases import JobPhase, NodePhase
from varuna_manager.core.state import Job, Node, Run
from varuna_manager.core.words import What
from varuna_runtime.spec.generation import GenerationKind, Running


def on_joined(change: Change, event: NodeJoined) -> None:
    """A new node, a new incarnation, the same one back, or one that was declared lost."""
    if event.incarnation in change.state.fenced:
        reason = "this incarnation was declared lost or superseded"
        change.do(FenceNode(node=event.node, incarnation=event.incarnation, reason=reason))
        change.announce(What.NODE_FENCED, reason, node=event.node)
        return
    known = change.state.nodes.get(event.node)
    if known is not None and not known.is_gone:
        if known.incarnation == event.incarnation:
            _on_back(change, known, event)
            return
        lose(change, known, "superseded by a new incarnation")
    _forget_gone_nodes(change)
    change.put_node(_new_node(change, event))
    _adopt_copies(change, known, event)
    why = f"{event.slots} x {event.device_kind}, notices: {event.notices}"
    change.announce(What.NODE_JOINED, why, who=event.node, node=event.node)
    if event.node in change.state.ending:
        _cordon(change, change.state.nodes[event.node])
    _abort_foreign(change, event)


def _adopt_copies(change: Change, known: Node | None, event: NodeJoined) -> None:
    """A vault lives as long as its agent's process: a fenced one that joins anew still has its copies."""
    is_same = known is not None and (known.pid, known.vault_port) == (event.pid, event.vault_port)
    if not is_same or not event.vault_port:
        copies.lost(change, event.node)
        return
    for job in list(change.state.jobs.values()):
        if event.node in job.holders or not job.is_over:
            job = change.put_job(replace(job, touched=job.touched | {event.node}))
            if job.is_over:
                generations.send_forget(change, job, change.state.nodes[event.node])
    copies.retire_again(change, change.state.nodes[event.node])


def _new_node(change: Change, event: NodeJoined) -> Node:
    return Node(
        node=event.node,
        incarnation=event.incarnation,
        phase=NodePhase.READY,
        reason="",
        since_s=change.at_s,
        lease_until_s=change.at_s + change.config.lease_s,
        slots=event.slots,
        device_kind=event.device_kind,
        memory_bytes=event.memory_bytes,
        host=event.host,
        notices=event.notices,
        pid=event.pid,
        vault_port=event.vault_port,
        joined_s=change.at_s,
    )


def _on_back(change: Change, node: Node, event: NodeJoined) -> None:
    """The same incarnation again: adopt what it runs of current generations, end everything else."""
    was_awaited = node.awaited
    if not node.is_connected:
        phase, reason = _standing(node)
        node = change.move_node(node, phase, reason)
        change.announce(What.NODE_BACK, "the same incarnation, reconnected", who=node.node, node=node.node)
    lease_until_s = change.at_s + change.config.lease_s
    node = change.put_node(replace(node, awaited=False, lease_until_s=lease_until_s, notices=event.notices))
    _abort_foreign(change, event)
    listed = {(r.job, r.generation): frozenset(r.ranks) for r in event.running}
    for job in change.state.iter_open():
        _resume_job(change, job, node, listed)
    copies.retire_again(change, node)
    warmth.forget(change, node)
    if was_awaited:
        _forget_again(change, node)
    if node.phase is NodePhase.RELEASED:
        _release(change, node)


def _standing(node: Node) -> tuple[NodePhase, str]:
    if node.drain_user is not None:
        return NodePhase.DRAINING, node.drain_reason or f"drained by {node.drain_user}"
    if node.notice_deadline_s is not None:
        return NodePhase.NOTICED, _notice_reason(node)
    return NodePhase.READY, ""


def _notice_reason(node: Node) -> str:
    left_s = (node.notice_deadline_s or 0.0) - node.notice_at_s
    return f"notice from {node.notice_source}: {left_s:.1f} s ahead"


def _abort_foreign(change: Change, event: NodeJoined) -> None:
    """Fence by generation: whatever is not a current generation on this very incarnation must end."""
    for running in event.running:
        job = change.state.jobs.get(running.job)
        if job is None or not _is_current(job, running, event):
            change.do(
                AbortRanks(
                    node=event.node,
                    incarnation=event.incarnation,
                    job=running.job,
                    generation=running.generation,
                    reason="not the current generation",
                )
            )


def _is_current(job: Job, running: Running, event: NodeJoined) -> bool:
    run = job.run
    return (
        run is not None
        and run.number == running.generation
        and run.members.get(event.node) == event.incarnation
    )


def _resume_job(change: Change, job: Job, node: Node, listed: dict[tuple[str, int], frozenset[int]]) -> None:
    """Send again what may have been lost with the connection.

    Ranks it no longer runs have their last reports under way behind its hello; without them it is fenced.
    """
    host = job.hosts.get(node.node)
    if host is None:
        return
    ranks = listed.get((job.job, host.generation), frozenset())
    run = job.run
    if run is None or run.number != host.generation or node.node not in run.members:
        if not ranks:
            change.put_job(replace(job, hosts=without(job.hosts, node.node)))
        return
    if job.phase in {JobPhase.STARTING, JobPhase.PROFILING}:
        _send_start_again(change, job, run, node)
    elif not ranks and run.unstopped(node.node):
        gone_by_s = host.gone_by_s or change.at_s + change.config.abort_timeout_s
        hosts = {**job.hosts, node.node: replace(host, gone_by_s=gone_by_s)}
        change.put_job(replace(job, hosts=hosts))
    elif job.phase is JobPhase.DRAINING and job.deadline_s is not None:
        generations.send_drain(change, job, run, node.node, job.deadline_s)


def _send_start_again(change: Change, job: Job, run: Run, node: Node) -> None:
    ranks = set(run.plan.ranks_on(node.node))
    if node.is_plannable and ranks - run.endpoints.keys():
        generations.send_start(change, job, run, node.node)
    elif run.is_activated and ranks - run.active - run.finished:
        generations.send_activate(change, job, run, node.node)


def _forget_again(change: Change, node: Node) -> None:
    """A Forget may have been lost with the old manager."""
    since_s = change.at_s - change.config.forget_window_s
    for job in change.state.jobs.values():
        if job.ended_s is not None and job.ended_s >= since_s and node.node in job.touched:
            generations.send_forget(change, job, node)


def lose(change: Change, node: Node, reason: str, phase: NodePhase = NodePhase.LOST) -> None:
    """This incarnation never comes back: nothing of any job is left on it; it is fenced if it shows up."""
    if node.notice_deadline_s is not None:
        reason = f"{reason}; {_notice_reason(node)}"
    was_connected = node.is_connected
    change.move_node(replace(node, awaited=False), phase, reason)
    change.state = replace(change.state, fenced=change.state.fenced | {node.incarnation})
    if phase is NodePhase.LEFT:
        copies.lost(change, node.node)
    what = What.NODE_LEFT if phase is NodePhase.LEFT else What.NODE_LOST
    change.announce(what, reason, node=node.node)
    if was_connected and phase is NodePhase.LOST:
        change.do(FenceNode(node=node.node, incarnation=node.incarnation, reason=reason))
    for job in list(change.state.jobs.values()):
        if node.node in job.hosts or node.node in job.touched:
            job = failures.close_cause(job, node.node, reason)
            hosts, touched = without(job.hosts, node.node), job.touched - {node.node}
            launchers = without(job.launchers, node.node)
            change.put_job(replace(job, hosts=hosts, touched=touched, launchers=launchers))


def _forget_gone_nodes(change: Change) -> None:
    """Drop nodes that went long ago and that no run mentions."""
    before_s = change.at_s - change.config.gone_memory_s
    mentioned = {name for job in change.state.iter_open() if job.run for name in job.run.members}
    nodes = {
        name: node
        for name, node in change.state.nodes.items()
        if not node.is_gone or node.since_s > before_s or name in mentioned
    }
    for name in change.state.nodes.keys() - nodes.keys():
        copies.lost(change, name)
    change.state = replace(change.state, nodes=nodes)


def on_disconnected(change: Change, event: NodeDisconnected) -> None:
    """Its ranks go on until the lease ends, a rank reports a loss, or it comes back."""
    node = _known(change, event.node, event.incarnation)
    if node is None or not node.is_connected:
        return
    node = change.move_node(node, NodePhase.DISCONNECTED, event.reason)
    change.put_node(replace(node, lease_until_s=change.at_s + change.config.lease_s))
    change.announce(What.NODE_DISCONNECTED, event.reason, node=node.node)
    for job in list(change.state.iter_open()):
        closed = failures.close_cause(job, node.node, event.reason)
        if closed is not job:
            change.put_job(closed)


def on_left(change: Change, event: NodeLeft) -> None:
    """The agent said goodbye or the provider says it is gone; this outranks its heartbeats."""
    node = _known(change, event.node, event.incarnation)
    if node is not None:
        lose(change, node, event.reason, NodePhase.LEFT)
    if event.is_machine and event.node in change.state.ending:
        change.state = replace(change.state, ending=without(change.state.ending, event.node))


def on_drain_requested(change: Change, event: NodeDrainRequested) -> None:
    """An operator's drain cannot be taken back; the node leaves once nothing runs on it."""
    node = change.state.nodes.get(event.node)
    if node is None or node.is_gone or node.drain_user is not None:
        return
    put_out_of_use(change, node, event.user, "")
    change.announce(What.NODE_DRAIN, "asked for by the operator", who=event.user, node=event.node)


def put_out_of_use(change: Change, node: Node, user: str, reason: str) -> None:
    """Let nothing new run on the node; it leaves once nothing runs on it."""
    node = change.put_node(replace(node, drain_user=user, drain_reason=reason))
    if node.is_connected:
        change.move_node(node, *_standing(node))


def on_release_decided(change: Change, event: ReleaseDecided) -> None:
    """Take the node out of use for good, unless some job has work on it; before its agent ever joined too."""
    state = change.state
    if event.node in state.ending or state.is_busy(event.node) or copies.is_needed(state, event.node):
        return
    change.state = replace(change.state, ending={**change.state.ending, event.node: event.reason})
    node = change.state.nodes.get(event.node)
    if node is not None and not node.is_gone:
        _cordon(change, node)


def _cordon(change: Change, node: Node) -> None:
    reason = f"its machine is being ended: {change.state.ending[node.node]}"
    if node.drain_user is None:
        put_out_of_use(change, node, "pool", reason)
        change.announce(What.NODE_CORDONED, reason, who="pool", node=node.node)


def on_notice_hinted(change: Change, event: NoticeHinted) -> None:
    """Tell it; a hint moves nothing."""
    if _known(change, event.node, event.incarnation) is not None:
        change.announce(What.NODE_HINT, event.detail, who=event.source, node=event.node)


def on_notices_changed(change: Change, event: NoticesChanged) -> None:
    """Remember whether notices can be relied on; each change is told once."""
    node = _known(change, event.node, event.incarnation)
    if node is not None and node.notices != event.notices:
        change.put_node(replace(node, notices=event.notices))
        why = f"{event.notices}; before: {node.notices}"
        change.announce(What.NODE_NOTICES, why, who=event.node, node=event.node)


def on_notice(change: Change, event: NoticeReceived) -> None:
    """The node will vanish; a repeated notice may move the time."""
    node = _known(change, event.node, event.incarnation)
    if node is None or node.phase is NodePhase.RELEASED or _says(node, event):
        return
    node = change.put_node(
        replace(
            node,
            notice_deadline_s=event.deadline_s,
            notice_source=event.source,
            notice_at_s=change.at_s,
            is_due=event.is_urgent,
            is_urgent=event.is_urgent,
        )
    )
    if node.phase is NodePhase.READY:
        change.move_node(node, *_standing(node))
    elif node.phase is NodePhase.NOTICED:
        change.put_node(replace(node, reason=_notice_reason(node)))
    why = f"vanishes in {event.deadline_s - change.at_s:.1f} s ({event.source}){_use(change, node)}"
    change.announce(What.NODE_NOTICE, why, who=event.source, node=node.node)


def _use(change: Change, node: Node) -> str:
    drain_at_s = departures.drain_at_s(change.state.durable(), node)
    if drain_at_s is None or drain_at_s <= change.at_s:
        return ""
    return f"; used for about {drain_at_s - change.at_s:.0f} s of them"


def _says(node: Node, event: NoticeReceived) -> bool:
    return (node.notice_deadline_s, node.notice_source) == (event.deadline_s, event.source)


def on_due(change: Change, node: Node, event: DeadlinePassed) -> None:
    """Work must move off the node, unless the notice was moved or withdrawn since."""
    if node.notice_deadline_s is not None and event.deadline_s <= node.notice_deadline_s:
        change.put_node(replace(node, is_due=True))


def on_notice_cancelled(change: Change, event: NoticeCancelled) -> None:
    """Back to normal."""
    node = _known(change, event.node, event.incarnation)
    if node is None or node.notice_deadline_s is None:
        return
    source = node.notice_source
    node = change.put_node(
        replace(node, notice_deadline_s=None, notice_source="", is_due=False, is_urgent=False)
    )
    if node.phase is NodePhase.NOTICED:
        change.move_node(node, *_standing(node))
    change.announce(What.NODE_NOTICE_CANCELLED, f"withdrawn by {source}", who=source, node=node.node)


def release_drained(change: Change) -> None:
    """Tell drained nodes to leave once no job has processes on them, nor needs copies that are there."""
    for node in _draining(change.state.nodes.values()):
        is_used = any(node.node in job.hosts for job in change.state.iter_open())
        if not is_used and not copies.is_needed(change.state, node.node):
            node = change.move_node(node, NodePhase.RELEASED, node.reason)
            change.announce(What.NODE_RELEASED, node.reason, node=node.node)
            _release(change, node)


def _draining(nodes: Iterable[Node]) -> list[Node]:
    return [node for node in nodes if node.phase is NodePhase.DRAINING]


def _release(change: Change, node: Node) -> None:
    change.do(ReleaseNode(node=node.node, incarnation=node.incarnation, reason=node.reason))


def on_manager_started(change: Change, event: ManagerStarted) -> None:
    """Every connection is new: nodes have the restart lease to come back; questions are asked again."""
    change.state = replace(change.state, epoch=max(change.state.epoch, event.epoch))
    if event.config is not None:
        change.state = replace(change.state, config=event.config)
    change.announce(What.MANAGER_STARTED, f"epoch {event.epoch}")
    lease_until_s = change.at_s + change.config.restart_lease_s
    for node in list(change.state.nodes.values()):
        if node.is_gone:
            continue
        if node.is_connected:
            node = change.move_node(node, NodePhase.DISCONNECTED, "the manager started again")
        change.put_node(replace(node, awaited=True, lease_until_s=lease_until_s))
    for job in list(change.state.iter_open()):
        _restart_question(change, job)


def _restart_question(change: Change, job: Job) -> None:
    """What was asked of the old manager is asked again; a start in the middle begins anew."""
    is_starting = job.phase is JobPhase.STARTING
    if is_starting or (job.run is not None and job.run.kind is GenerationKind.PROFILE):
        reason = "the manager started again in the middle of a start"
        generations.begin(change, generations.end(change, job, reason), reason)
    elif job.asked_version is not None:
        change.put_job(replace(job, asked_version=None, deadline_s=None))


def _known(change: Change, node: str, incarnation: str) -> Node | None:
    known = change.state.nodes.get(node)
    return known if known and known.incarnation == incarnation and not known.is_gone else None
