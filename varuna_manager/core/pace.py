"""What the steps of a running job take against its profile, which is refreshed where they go on to differ.

Steps are volatile and only collected; what a window of them says becomes one durable event.
"""

from collections.abc import Mapping
from dataclasses import replace

from varuna_manager.core import pool
from varuna_manager.core.actions import AnyAction, RaiseDurable
from varuna_manager.core.change import Change
from varuna_manager.core.config import CoreConfig
from varuna_manager.core.events import ProfileRefreshed, StepSeen
from varuna_manager.core.state import Job, Node, Pace, Run, Slowness, State
from varuna_manager.core.words import What
from varuna_manager.planner.refresh import paces, refreshed
from varuna_manager.planner.request import PlannableNode

WARM_UP_STEPS = 5
"""Steps of a generation that do not count: caches and allocators fill up."""
_SPEED_DIGITS = 1  # the planner tries a pool for each speed
_LEAST_SPEED = 0.1


def on_step(state: State, event: StepSeen) -> tuple[State, tuple[AnyAction, ...]]:
    """Collect what a rank says of a whole step; raise an event once a window of them says something new."""
    job = state.jobs.get(event.job)
    run = job.run if job is not None else None
    if job is None or run is None or not _counts(job, run, event):
        return state, ()
    assert event.rank is not None
    config, old = state.config, state.seen.paces.get(event.job)
    times = old.times if old is not None and old.generation == run.number else {}
    micro_s = event.busy_s * run.plan.batch.micro_batch_size / event.busy_samples
    own = (*times.get(event.rank, ()), micro_s)[-config.refresh_steps :]
    times = {**times, event.rank: own}
    actions: tuple[AnyAction, ...] = ()
    is_due = event.at_s - job.refreshed_s >= config.refresh_interval_s
    if is_due and len(own) == config.refresh_steps and _is_full(times, run, config):
        news = _news(config, job, run, event, times)
        actions, times = (() if news is None else (RaiseDurable(event=news),)), {}
    seen = replace(state.seen, paces={**state.seen.paces, job.job: Pace(generation=run.number, times=times)})
    return replace(state, seen=seen), actions


def on_refreshed(change: Change, event: ProfileRefreshed) -> None:
    """Let the profile say what the steps took; the next plan goes by it, this one stays."""
    job = change.state.jobs.get(event.job)
    run = job.run if job is not None else None
    if job is None or run is None or run.number != event.generation or job.profile is None:
        return
    if len(event.factors) != run.plan.layout.stages or not event.slow.keys() <= run.members.keys():
        return
    by = f"steps of generation {run.number} up to {event.step + 1}"
    remembered = _remembered(change.config, job, change.at_s)
    slow = {
        incarnation: at for incarnation, at in remembered.items() if incarnation not in run.members.values()
    }
    slow |= {run.members[node]: Slowness(factor=f, at_s=change.at_s) for node, f in event.slow.items()}
    profile = refreshed(job.profile, run.plan, event.factors, by=by)
    job = change.put_job(
        replace(
            job,
            profile=profile,
            slow=slow,
            refreshed_generation=run.number,
            refreshed_s=change.at_s,
            ahead=None,
        )
    )
    change.announce(What.PROFILE_REFRESHED, _words(event), job=job)


def as_request(change: Change, job: Job, nodes: tuple[Node, ...]) -> tuple[PlannableNode, ...]:
    """Return the nodes as the planner knows them, those that were seen to be slow with their speed.

    Such a sight is forgotten after a while: a node that no plan uses has no steps to show that it recovered.
    """
    slow = _remembered(change.config, job, change.at_s)
    return tuple(
        replace(asked, speed=_speed(slow[node.incarnation].factor)) if node.incarnation in slow else asked
        for node, asked in zip(nodes, pool.as_request(nodes), strict=True)
    )


def _remembered(config: CoreConfig, job: Job, at_s: float) -> dict[str, Slowness]:
    since_s = at_s - config.slow_memory_s
    return {incarnation: seen for incarnation, seen in job.slow.items() if seen.at_s >= since_s}


def _counts(job: Job, run: Run, event: StepSeen) -> bool:
    """Return whether the step tells of the plan: short ones, and the first of a generation, do not."""
    is_told = event.rank in run.ranks and event.busy_s > 0 and event.busy_samples > 0
    is_whole = event.samples == job.spec.batch_size
    is_late = event.step >= run.first_step + WARM_UP_STEPS
    return run.number == event.generation and is_told and is_whole and is_late and not job.is_over


def _is_full(times: Mapping[int, tuple[float, ...]], run: Run, config: CoreConfig) -> bool:
    return all(len(times.get(rank, ())) >= config.refresh_steps for rank in run.ranks)


def _news(
    config: CoreConfig, job: Job, run: Run, event: StepSeen, times: Mapping[int, tuple[float, ...]]
) -> ProfileRefreshed | None:
    """Return what to change, or None where all is about as it was known: no plan may flap with noise."""
    if job.profile is None:
        return None
    found = paces(job.profile, run.plan, times)
    remembered = _remembered(config, job, event.at_s)
    known = {node for node, incarnation in run.members.items() if incarnation in remembered}
    slow = {n: pace for n, pace in found.nodes.items() if _is_slow(config, pace, is_known=n in known)}
    is_off = any(max(pace, 1 / pace) > 1 + config.refresh_min for pace in found.stages)
    if not is_off and slow.keys() == known:
        return None
    most = config.refresh_max
    return ProfileRefreshed(
        at_s=event.at_s,
        job=job.job,
        generation=run.number,
        step=event.step,
        factors=tuple(min(max(pace, 1 / most), most) for pace in found.stages),
        slow=slow,
    )


def _is_slow(config: CoreConfig, pace: float, *, is_known: bool) -> bool:
    """One that is known to be slow must get well half the way before it counts as fast again."""
    limit = config.slow_min / 2 if is_known else config.slow_min
    return pace > 1 + limit


def _speed(factor: float) -> float:
    return max(round(1 / factor, _SPEED_DIGITS), _LEAST_SPEED)


def _words(event: ProfileRefreshed) -> str:
    low, high = (f"{factor:.2f}" for factor in (min(event.factors), max(event.factors)))
    times = f"{low} times" if low == high else f"{low} to {high} times, by stage,"
    words = [f"up to step {event.step + 1} ops took {times} what the profile said"]
    words += [f"{node} takes {factor:.2f} times as long as its peers" for node, factor in event.slow.items()]
    return "; ".join(words)
