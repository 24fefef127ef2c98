"""What must hold after every single event, however odd the sequence."""

from collections.abc import Iterable

from varuna_manager.core import departures, pool
from varuna_manager.core.actions import ActivateRanks, AnyAction, DrainRanks, StartRanks
from varuna_manager.core.phases import HOLDING, JOB_TRANSITIONS, TERMINAL, JobPhase
from varuna_manager.core.state import State
from varuna_runtime.spec.generation import GenerationKind


def check(before: State, after: State, actions: Iterable[AnyAction]) -> None:
    """Raise AssertionError if the step from `before` to `after` broke a rule."""
    _check_jobs(before, after)
    holders = [job.job for job in after.jobs.values() if job.phase in HOLDING]
    assert len(holders) <= 1, f"several jobs hold the pool: {holders}"
    changed = pool.signature(before) != pool.signature(after)
    assert after.pool_version == before.pool_version + int(changed)
    _check_open(after)
    for action in actions:
        if isinstance(action, StartRanks):
            _check_start(after, action)
        if isinstance(action, DrainRanks):
            _check_drain(after, action)
        if isinstance(action, ActivateRanks):
            _check_activate(after, action)


def check_nobody_is_kept_too_long(after: State, at_s: float) -> None:
    """Raise AssertionError if a job trains on a member whose drain should have begun by a durable event."""
    for job in after.iter_open():
        if job.phase is JobPhase.RUNNING and job.run is not None:
            assert not departures.due(after, job, job.run, at_s), departures.who(after, job.run)


def _check_jobs(before: State, after: State) -> None:
    for name, old in before.jobs.items():
        new = after.jobs[name]
        assert new.generation >= old.generation
        is_damaged = new.passed_over == old.durable_step
        assert is_damaged or (new.durable_step or 0) >= (old.durable_step or 0)
        assert new.reached >= max(old.reached, new.durable_step or 0)
        assert new.kept_generation >= old.kept_generation
        assert old.batch is None or new.batch == old.batch, "the recorded batch shape changed"
        if old.phase in TERMINAL:
            kept = ("phase", "reason", "ended_s", "weights_sha256", "generation", "durable_step")
            assert [getattr(new, k) for k in kept] == [getattr(old, k) for k in kept]
        assert new.phase in _reachable(old.phase), f"{old.phase} -> {new.phase}"


def _reachable(phase: object) -> set[object]:
    """One event may make several legal moves, for example RUNNING -> PLANNING -> PARKED."""
    found = {phase}
    frontier = [phase]
    while frontier:
        for to in JOB_TRANSITIONS[frontier.pop()]:  # type: ignore[index]
            if to not in found:
                found.add(to)
                frontier.append(to)
    return found


def _check_open(after: State) -> None:
    expected = [j.job for j in sorted(after.jobs.values(), key=lambda j: j.seq) if not j.is_over or j.hosts]
    assert list(after.open_jobs) == expected
    for job in after.iter_open():
        for node in job.hosts:
            assert not after.nodes[node].is_gone, "a lost node still counts as a host"


def _check_start(after: State, action: StartRanks) -> None:
    node = after.nodes[action.node]
    assert node.is_plannable, f"Start to {node.phase} node {node.node}"
    assert node.incarnation == action.incarnation
    slots = [s.index for s in action.plan.placement if s.node == action.node]
    assert len(set(slots)) == len(slots) == len(action.ranks)
    assert all(0 <= index < node.slots for index in slots)
    others = [j.job for j in after.iter_open() if j.job != action.job and action.node in j.hosts]
    assert not others, f"node {action.node} still runs {others}"


def _check_activate(after: State, action: ActivateRanks) -> None:
    """All ranks go on from one version, which all of them can load, and never from less than need be."""
    job = after.jobs[action.job]
    run = job.run
    if run is None or run.number != action.generation or run.kind is not GenerationKind.TRAIN:
        return
    assert action.resume is not None
    assert set(run.loadable) == set(run.ranks)
    assert all(action.resume in found for found in run.loadable.values())
    newer = [{v for v in found if v > action.resume} for found in run.loadable.values()]
    assert not set.intersection(*newer), "a newer version could be loaded by all"
    assert action.resume.step or not job.durable_step, "initial weights though a step was durable"


def _check_drain(after: State, action: DrainRanks) -> None:
    """A drain has no longer than usual, unless it began for a notice that is due and ends with it."""
    job = after.jobs[action.job]
    if job.run is None:
        return
    usual_s = max(after.config.drain_timeout_s, departures.lead_s(after, job, job.run))
    members = [after.nodes[name] for name in job.run.members]
    is_due = any(node.is_due and not node.is_urgent for node in members)
    assert action.within_s <= usual_s + 1e-6 or is_due, f"a drain within {action.within_s} s"
