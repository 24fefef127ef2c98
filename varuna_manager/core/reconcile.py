"""After every durable event: bring jobs in line with the facts; level-triggered, so nothing is missed."""

from dataclasses import replace

from varuna_manager.core import copies, departures, generations, jobs, nodes, pool, warmth
from varuna_manager.core.change import Change
from varuna_manager.core.phases import JobPhase
from varuna_manager.core.state import Job, Node, Run, State, Warmth
from varuna_manager.core.words import What, counted


def reconcile(change: Change, before: State) -> None:
    """Bump the pool version, tend the job that holds the pool, then give the pool to the next in turn."""
    if change.state.nodes is not before.nodes and pool.signature(change.state) != pool.signature(before):
        change.state = replace(change.state, pool_version=change.state.pool_version + 1)
    job = pool.holder(change.state)
    if job is not None:
        _tend(change, job)
    if pool.holder(change.state) is None:
        _admit(change)
    if (job := pool.holder(change.state)) is not None:
        warmth.tend(change, job)
    for job in change.state.iter_open():
        copies.retire(change, job)
    nodes.release_drained(change)


def _tend(change: Change, job: Job) -> None:
    run = job.run
    match job.phase:
        case JobPhase.CANCELLING:
            if not job.hosts:
                generations.finish(change, job, JobPhase.CANCELLED, What.CANCELLED, job.reason)
        case JobPhase.RUNNING if run is not None:
            _tend_running(change, job, run)
        case JobPhase.DRAINING if run is not None:
            _tend_draining(change, job, run)
        case JobPhase.STARTING | JobPhase.PROFILING if run is not None:
            _tend_starting(change, job, run)
        case _:
            _tend_planning(change, job)


def _tend_running(change: Change, job: Job, run: Run) -> None:
    if lost := _lost(change.state, run):
        _restart(change, job, lost)
    elif departures.due(change.state, job, run, change.at_s):
        generations.begin_drain(change, job, run, departures.reason(change.state, run))
        _tend_restarted(change, job)
    else:
        _tend_growth(change, job, run)


def _tend_growth(change: Change, job: Job, run: Run) -> None:
    """Ask what the pool of warm nodes would be worth, once per pool; give warming ones a moment.

    It is asked about if it is larger, or a member leaves: the answer is then what the drain leads to.
    """
    state = change.state
    leaving = {n.node for n in departures.leaving(state, run)}
    staying = run.members.keys() - leaving
    if job.asked_version is not None or len(staying) >= job.spec.nodes.max or pool.is_warming(state, job):
        return
    nodes = tuple(n for n in pool.usable(state, job) if n.node in run.members or _is_warm(job, n))
    offered = {n.node for n in nodes}
    if _is_judged(change, job, offered, is_leaving=bool(leaving)):
        return
    is_news = offered > staying or (leaving and offered == staying)
    if is_news and not pool.shortage(state, job):
        generations.ask(change, job, nodes)


def _is_judged(change: Change, job: Job, offered: set[str], *, is_leaving: bool) -> bool:
    """Return True for a pool that is not worth it, or may be later: unless others come, or one leaves."""
    if job.refused_version == change.state.pool_version and job.offered == offered:
        return True
    if job.deadline_s is None:
        return False
    if is_leaving:
        return job.offered == offered
    earliest_s = job.last_morph_s + change.config.growth_min_interval_s
    return offered <= job.offered or change.at_s < earliest_s


def _is_warm(job: Job, node: Node) -> bool:
    return pool.warmth(job, node) is Warmth.WARM


def _tend_draining(change: Change, job: Job, run: Run) -> None:
    if lost := _lost(change.state, run):
        _restart(change, job, lost)
        return
    until_s = departures.drain_until_s(change.state, job, run, change.at_s)
    if job.deadline_s is None or job.deadline_s <= change.at_s:
        return
    is_sooner = until_s < job.deadline_s
    if is_sooner and until_s <= change.at_s:
        _restart(change, job, "a notice ends before the drain can")
    elif is_sooner or (not run.is_persisting and copies.must_persist(change.state, job, run)):
        generations.drain(change, job, run, min(until_s, job.deadline_s))


def _tend_starting(change: Change, job: Job, run: Run) -> None:
    """Nothing trains yet: a start without every member as it was planned begins anew."""
    unfit = [
        name
        for name, incarnation in sorted(run.members.items())
        if not change.state.nodes[name].is_plannable or change.state.nodes[name].incarnation != incarnation
    ]
    if unfit:
        reason = (
            _lost(change.state, run)
            or departures.reason(change.state, run)
            or f"PREEMPTED: lost touch with {', '.join(unfit)}"
        )
        _restart(change, job, reason)


def _restart(change: Change, job: Job, reason: str) -> None:
    change.announce(What.MORPH, reason, job=job)
    generations.begin(change, generations.end(change, job, reason), reason)
    _tend_restarted(change, job)


def _tend_restarted(change: Change, job: Job) -> None:
    job = change.job(job.job)
    if job.run is None and job.phase in {JobPhase.PLANNING, JobPhase.PROFILING}:
        _tend_planning(change, job)


def _tend_planning(change: Change, job: Job) -> None:
    """Ask, unless the pool is too small, unsettled after a restart, or a back-off runs."""
    if not pool.is_settled(change.state):
        return
    job = _with_kind(change, job)
    if shortage := pool.shortage(change.state, job):
        jobs.park(change, job, f"{shortage}; {job.reason}")
    elif job.asked_version is None and job.deadline_s is None:
        _plan(change, job, pool.preferred(change.state, job))


def _plan(change: Change, job: Job, nodes: tuple[Node, ...]) -> None:
    """Start by the plan that was asked for ahead if it is the answer for these nodes, else ask for one."""
    ahead = job.ahead
    is_answered = ahead is not None and ahead.pool_version == change.state.pool_version
    if ahead is not None and is_answered and job.offered == {n.node for n in nodes}:
        generations.start_training(change, job, ahead.plan)
    else:
        generations.ask(change, job, nodes)


def _with_kind(change: Change, job: Job) -> Job:
    """Choose the device kind anew while no plan has pinned it; another kind needs another profile."""
    kind = pool.preferred_kind(pool.plannable(change.state))
    if job.batch is not None or not kind or kind == job.device_kind:
        return job
    if job.device_kind and pool.usable(change.state, job) and not pool.shortage(change.state, job):
        return job
    job = change.put_job(replace(job, device_kind=kind, profile=None))
    return generations.begin(change, job, job.reason)


def _admit(change: Change) -> None:
    """Start the next waiting job once the pool is known, big enough, and free of other jobs' processes."""
    state = change.state
    job = pool.next_in_turn(state)
    if job is None or not pool.is_settled(state) or pool.lingering(state, job):
        return
    job = _waiting_with_kind(change, job)
    if pool.shortage(state, job) or not pool.usable(state, job):
        return
    reason = f"the pool has {counted(len(pool.usable(state, job)), 'node')}"
    if job.phase is JobPhase.PARKED:
        change.announce(What.RESUMED, reason, job=job)
        reason = f"resumed: {reason}"
    _tend_planning(change, generations.begin(change, job, reason))


def _waiting_with_kind(change: Change, job: Job) -> Job:
    kind = pool.preferred_kind(pool.plannable(change.state))
    if job.batch is not None or not kind or kind == job.device_kind:
        return job
    return change.put_job(replace(job, device_kind=kind, profile=None))


def _lost(state: State, run: Run) -> str:
    """Return which members with unstopped ranks are gone for good, in words."""
    words = []
    for name, incarnation in sorted(run.members.items()):
        node = state.nodes[name]
        is_same = node.incarnation == incarnation
        if run.unstopped(name) and (node.is_gone or not is_same):
            words.append(f"{name} ({node.reason if is_same else 'a new incarnation joined'})")
    return f"PREEMPTED: lost {', '.join(words)}" if words else ""
