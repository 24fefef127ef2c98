"""Launchers that are ready before a rank needs them, so that a morph costs the switch and not a start."""

from collections.abc import Iterator
from dataclasses import replace

from varuna_manager.core import departures, pool
from varuna_manager.core.actions import WarmNode
from varuna_manager.core.change import Change, without
from varuna_manager.core.events import DeadlinePassed, NodeWarmed
from varuna_manager.core.phases import HOLDING, JobPhase
from varuna_manager.core.state import Job, Launcher, Node, Run, Warmth
from varuna_manager.core.words import What


def tend(change: Change, job: Job) -> None:
    """Tell the nodes the job could grow onto, or fall back on, to open its launcher; each once."""
    run = job.run
    if run is None or job.phase is JobPhase.CANCELLING:
        return
    for node in _wanted(change, job, run):
        if pool.warmth(job, node) is None:
            _tell(change, change.job(job.job), node)


def _wanted(change: Change, job: Job, run: Run) -> list[Node]:
    """Return as many nodes outside the run as the job may still have, those already asked for first.

    A member that leaves holds no place.
    """
    rank = {Warmth.WARM: 0, Warmth.WARMING: 1, None: 2}
    spare = [n for n in pool.usable(change.state, job) if n.node not in run.members]
    fit = [n for n in spare if pool.warmth(job, n) is not Warmth.COLD]
    fit.sort(key=lambda n: (rank[pool.warmth(job, n)], n.node))
    num_staying = len(run.members) - len(departures.leaving(change.state, run))
    return fit[: max(0, job.spec.nodes.max - num_staying)]


def _tell(change: Change, job: Job, node: Node) -> None:
    # One deadline for all that are under way: a stream of newcomers must not put growth off for ever.
    pending = [at_s for at_s in deadlines(job) if at_s > change.at_s]
    deadline_s = min([change.at_s + change.config.warm_patience_s, *pending])
    launcher = Launcher(incarnation=node.incarnation, warmth=Warmth.WARMING, deadline_s=deadline_s)
    _put(change, replace(job, touched=job.touched | {node.node}), node.node, launcher)
    change.do(
        WarmNode(node=node.node, incarnation=node.incarnation, job=job.job, spec=job.spec, bundle=job.bundle)
    )


def on_warmed(change: Change, event: NodeWarmed) -> None:
    """A launcher is ready or failed; the newest word about an incarnation counts."""
    job, node = change.state.jobs.get(event.job), change.state.nodes.get(event.node)
    if job is None or node is None or job.is_over or job.phase is JobPhase.CANCELLING:
        return
    if node.incarnation != event.incarnation or node.is_gone:
        return
    warmth = Warmth.WARM if event.ok else Warmth.COLD
    if pool.warmth(job, node) is warmth:
        return
    _put(change, job, node.node, Launcher(incarnation=event.incarnation, warmth=warmth, reason=event.reason))
    what = What.NODE_WARM if event.ok else What.NODE_COLD
    change.announce(what, event.reason or "the launcher is ready", who=node.node, job=job, node=node.node)


def prepared(job: Job, node: str, incarnation: str) -> Job:
    """Return the job with the node known to be warm: a rank was forked there."""
    known = job.launchers.get(node)
    launcher = Launcher(incarnation=incarnation, warmth=Warmth.WARM)
    return job if known == launcher else replace(job, launchers={**job.launchers, node: launcher})


def forget(change: Change, node: Node) -> None:
    """The node is back: what was said to and by it may be lost, so it is asked again where no rank is."""
    for job in list(change.state.iter_open()):
        if node.node in job.launchers and node.node not in job.hosts:
            change.put_job(replace(job, launchers=without(job.launchers, node.node)))


def deadlines(job: Job) -> Iterator[float]:
    """Yield until when growth waits for nodes that are warming up."""
    if job.phase in HOLDING:
        for launcher in job.launchers.values():
            if launcher.deadline_s is not None:
                yield launcher.deadline_s


def on_deadline(change: Change, job: Job, event: DeadlinePassed) -> None:
    """Wait no longer; a word that still comes counts."""
    for node, launcher in sorted(job.launchers.items()):
        if launcher.deadline_s == event.deadline_s:
            job = _put(change, job, node, replace(launcher, deadline_s=None))
            why = f"not ready within {change.config.warm_patience_s:g} s: growth waits for it no longer"
            change.announce(What.NODE_COLD, why, job=job, node=node)


def _put(change: Change, job: Job, node: str, launcher: Launcher) -> Job:
    return change.put_job(replace(job, launchers={**job.launchers, node: launcher}))
