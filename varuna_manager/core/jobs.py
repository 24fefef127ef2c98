"""What users and the planner say of a job: submitted, cancelled, profiled, planned."""

from dataclasses import replace

from varuna_manager.core import departures, generations, growth, policy, pool
from varuna_manager.core.change import Change
from varuna_manager.core.events import CancelRequested, JobSubmitted, PlanMade, ProfileMissing, ProfileReady
from varuna_manager.core.phases import HOLDING, JobPhase
from varuna_manager.core.state import Ahead, Job, Run
from varuna_manager.core.words import What, counted
from varuna_runtime.spec.layout import Infeasible, Plan


def on_submitted(change: Change, event: JobSubmitted) -> None:
    """A new job waits for its turn; a repeated request is the same job."""
    jobs = change.state.jobs
    if event.job in jobs:
        return
    seq = change.state.num_submitted
    change.state = replace(change.state, num_submitted=seq + 1)
    job = change.put_job(
        Job(
            job=event.job,
            seq=seq,
            spec=event.spec,
            model=event.model,
            bundle=event.bundle,
            user=event.user,
            request_id=event.request_id,
            submitted_s=change.at_s,
            phase=JobPhase.PENDING,
            reason="submitted",
            since_s=change.at_s,
        )
    )
    change.announce(What.SUBMITTED, f"{event.model.num_steps} steps", who=event.user, job=job)


def on_cancel(change: Change, event: CancelRequested) -> None:
    """End the job in whatever phase it is; it is CANCELLED once no node runs anything of it."""
    job = change.state.jobs.get(event.job)
    if job is None or job.is_over or job.phase is JobPhase.CANCELLING:
        return
    reason = f"cancelled by {event.user}"
    change.announce(What.CANCEL_REQUESTED, reason, who=event.user, job=job)
    if not job.hosts:
        generations.finish(change, job, JobPhase.CANCELLED, What.CANCELLED, reason)
        return
    change.move_job(generations.end(change, job, reason), JobPhase.CANCELLING, reason)


def on_profile(change: Change, event: ProfileReady) -> None:
    """The profile is there: end the generation that measured it, if any, and plan."""
    job = change.state.jobs.get(event.job)
    if job is None or job.is_over or job.profile is not None or job.phase is JobPhase.CANCELLING:
        return
    if job.device_kind and event.profile.device_kind not in ("", job.device_kind):
        return
    job = change.put_job(replace(job, profile=event.profile))
    change.announce(What.PROFILED, f"measured on {event.profile.measured_on}", job=job)
    if job.phase is JobPhase.PROFILING:
        generations.begin(change, generations.end(change, job, "the profile is there"), job.reason)


def on_profile_missing(change: Change, event: ProfileMissing) -> None:
    """Measure, if the pool still allows it; else `reconcile` asks again or parks the job."""
    job = change.state.jobs.get(event.job)
    if job is None or job.phase is not JobPhase.PROFILING or job.asked_version is None:
        return
    job = change.put_job(replace(job, asked_version=None, deadline_s=None))
    if not pool.shortage(change.state, job) and pool.usable(change.state, job):
        generations.start_profile(change, job)


def on_plan(change: Change, event: PlanMade) -> None:
    """Act on the answer to the question under way; one that read an older pool is asked again."""
    job = change.state.jobs.get(event.job)
    if job is None or job.phase not in HOLDING or job.asked_version != event.pool_version:
        return
    if job.profile is None:
        return
    job = change.put_job(replace(job, asked_version=None, deadline_s=None))
    if event.pool_version != change.state.pool_version:
        return
    outcome = _checked(change, job, event.outcome)
    if job.phase is JobPhase.RUNNING and job.run is not None:
        _consider_growth(change, job, _as_of_now(job.run, event), outcome)
    elif job.phase is JobPhase.PLANNING:
        _start_or_park(change, job, outcome)


def _as_of_now(run: Run, event: PlanMade) -> Run:
    """Return the run with its plan's step as the answer's profile has it, so that like meets like."""
    if event.running_step_s is None:
        return run
    return replace(run, plan=replace(run.plan, predicted_step_s=event.running_step_s))


def _checked(change: Change, job: Job, outcome: Plan | Infeasible) -> Plan | Infeasible:
    if isinstance(outcome, Infeasible):
        return outcome
    wrong = pool.misplaced(outcome, pool.usable(change.state, job), len(job.model.segments))
    if not wrong and job.batch not in (None, outcome.batch):
        wrong = "it changes the recorded batch shape"
    return Infeasible(reason=f"internal: the plan cannot be started: {wrong}") if wrong else outcome


def _start_or_park(change: Change, job: Job, outcome: Plan | Infeasible) -> None:
    if isinstance(outcome, Plan):
        generations.start_training(change, job, outcome)
        return
    usable = pool.usable(change.state, job)
    if job.offered < {n.node for n in usable}:
        generations.ask(change, job, usable)  # the warm ones alone will not do
        return
    num_nodes = len(usable)
    is_full = num_nodes >= job.spec.nodes.max
    hint = f"; {outcome.change}" if outcome.change else ""
    hope = (
        "the pool has nodes.max nodes, so more nodes will not help" if is_full else "waiting for more nodes"
    )
    reason = f"no plan for {counted(num_nodes, 'node')}: {outcome.reason}{hint} ({hope})"
    park(change, replace(job, refused_version=change.state.pool_version), reason)


def park(change: Change, job: Job, reason: str) -> None:
    """Hold no node and wait; the job resumes by itself."""
    job = change.move_job(job, JobPhase.PARKED, reason)
    change.announce(What.PARKED, reason, job=job)


def _consider_growth(change: Change, job: Job, run: Run, outcome: Plan | Infeasible) -> None:
    """Morph to the larger pool if it pays; where it may pay later, it is judged again then."""
    config = change.config
    if isinstance(outcome, Plan):
        job = change.put_job(replace(job, ahead=Ahead(pool_version=change.state.pool_version, plan=outcome)))
    gain = policy.gain(run.plan, outcome) if isinstance(outcome, Plan) else 0.0
    if isinstance(outcome, Infeasible) or gain <= 0 or gain < config.growth_min_gain:
        change.put_job(replace(job, refused_version=change.state.pool_version))
        return
    worth_s = change.at_s + _wait_s(change, job, run, outcome)
    earliest_s = max(worth_s, job.last_morph_s + config.growth_min_interval_s)
    if change.at_s < earliest_s:
        change.put_job(replace(job, deadline_s=earliest_s))
        return
    pool_word = "a larger pool" if len(outcome.nodes) > len(run.members) else "a better pool"
    reason = (
        f"{pool_word}: {outcome.layout} on {counted(len(outcome.nodes), 'node')} saves "
        f"{gain:.0%} of a step ({run.plan.predicted_step_s:.3g} s -> {outcome.predicted_step_s:.3g} s)"
    )
    generations.begin_drain(change, job, run, reason)


def _wait_s(change: Change, job: Job, run: Run, larger: Plan) -> float:
    if departures.leaving(change.state, run):
        return 0.0  # there will be a morph anyway
    wait_s = growth.best_wait_s(change.state, job, run, larger, change.at_s)
    return change.config.growth_retry_s if wait_s is None else wait_s
