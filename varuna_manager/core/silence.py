"""Silent losses: a node counts as lost before its lease ends once two hear nothing of it, each by itself.

One is the manager, of its agent; the other a rank elsewhere, of a rank there. Either alone may be deaf, or
the other end busy: then the lease decides, and the agent judges its own workers. What was told is volatile.
"""

from collections.abc import Iterator
from dataclasses import replace

from varuna_manager.core import nodes
from varuna_manager.core.change import Change, without
from varuna_manager.core.config import CoreConfig
from varuna_manager.core.events import NodeSilent, PeerSilent
from varuna_manager.core.state import Job, Node, Run, Seen, Silences, State


def on_peer_silent(state: State, event: PeerSilent) -> State:
    """Remember that a rank hears nothing of a peer, or hears it again."""
    job = state.jobs.get(event.job)
    run = job.run if job is not None and not job.is_over else None
    if run is None or run.number != event.generation or not {event.rank, event.peer} <= set(run.ranks):
        return state
    known = state.seen.silences.get(event.job)
    tellers = dict(known.tellers) if known is not None and known.generation == run.number else {}
    told = tellers.pop(event.peer, frozenset()) - {event.rank}
    if event.silent_s > 0:
        told |= {event.rank}
    if told:
        tellers[event.peer] = told
    silences = without(state.seen.silences, event.job)
    if tellers:
        silences[event.job] = Silences(generation=run.number, tellers=tellers)
    return replace(state, seen=replace(state.seen, silences=silences))


def attended(config: CoreConfig, seen: Seen, at_s: float) -> Seen:
    """Return what is seen once the manager looks at its clock: after a pause of its own it begins anew."""
    last_s = seen.last_tick_s
    if last_s is None or at_s - last_s > config.pause_s:
        return replace(seen, attentive_since_s=at_s)
    return seen


def verdicts(state: State, at_s: float) -> tuple[NodeSilent, ...]:
    """Return the nodes that are lost by now because neither their agent nor a rank of theirs is heard."""
    found = {
        node.node: NodeSilent(at_s=at_s, node=node.node, incarnation=node.incarnation, reason=reason)
        for job in state.iter_open()
        if job.run is not None
        for node, reason in _silent(state, job, job.run, at_s)
    }
    return tuple(event for _, event in sorted(found.items()))


def _silent(state: State, job: Job, run: Run, at_s: float) -> Iterator[tuple[Node, str]]:
    told = state.seen.silences.get(job.job)
    if told is None or told.generation != run.number:
        return
    for rank, tellers in sorted(told.tellers.items()):
        node = _host(state, run, rank)
        if node is None or _is_heard(state, node, at_s):
            continue
        others = [
            teller
            for teller in sorted(tellers)
            if (there := _host(state, run, teller)) is not None and _is_heard(state, there, at_s)
        ]
        if others:
            yield node, _reason(state, job, rank, others)


def _reason(state: State, job: Job, rank: int, tellers: list[int]) -> str:
    who = f"rank {tellers[0]}" if len(tellers) == 1 else f"ranks {', '.join(map(str, tellers))}"
    verb = "hears" if len(tellers) == 1 else "hear"
    return (
        f"silent: its agent not heard for {state.config.suspect_s:g} s, "
        f"and {who} of job {job.job} {verb} nothing of its rank {rank}"
    )


def _host(state: State, run: Run, rank: int) -> Node | None:
    """Return the node of a rank, unless the incarnation that it was started on is gone or still awaited."""
    name = run.plan.placement[rank].node
    node = state.nodes[name]
    is_judged = node.incarnation == run.members[name] and not node.is_gone and not node.awaited
    return node if is_judged else None


def _is_heard(state: State, node: Node, at_s: float) -> bool:
    seen = state.seen
    hello_s = node.lease_until_s - state.config.lease_s
    heard_s = max(hello_s, seen.beats.get(node.node, 0.0), seen.attentive_since_s, seen.stood_still_until_s)
    return at_s - heard_s < state.config.suspect_s


def on_silent(change: Change, event: NodeSilent) -> None:
    """Take the node for lost, as when its lease ends."""
    node = change.state.nodes.get(event.node)
    if node is not None and node.incarnation == event.incarnation and not node.is_gone:
        nodes.lose(change, node, event.reason)
