"""Volatile events: beats, steps, ticks. They touch `State.seen` only; a crossed threshold becomes durable."""

from dataclasses import replace

from varuna_manager.core import resuming, silence
from varuna_manager.core.actions import Announce, AnyAction, RaiseDurable
from varuna_manager.core.deadlines import timers
from varuna_manager.core.events import BeatSeen, DeadlinePassed, NodeSilent, StepSeen, Ticked
from varuna_manager.core.state import Progress, Seen, State
from varuna_manager.core.words import What

SMOOTHING = 0.2
"""Weight of the newest step's time in the average that speed and ETA come from."""


def on_beat(state: State, event: BeatSeen) -> State:
    """Remember when the node's present incarnation was heard."""
    node = state.nodes.get(event.node)
    if node is None or node.incarnation != event.incarnation or not node.is_connected:
        return state
    beats = {**state.seen.beats, event.node: event.at_s}
    return _with(state, replace(state.seen, beats=beats))


def replay(state: State, event: StepSeen) -> tuple[AnyAction, ...]:
    """Tell how far a generation goes back behind steps heard of, where the core did not know of them."""
    job, old = state.jobs.get(event.job), state.seen.progress.get(event.job)
    if job is None or job.is_over or job.run is None or job.run.number != event.generation:
        return ()
    if old is None or old.generation >= event.generation or old.step + 1 - event.step <= job.run.replayed:
        return ()
    again = resuming.replayed_steps(old.step + 1 - event.step)
    why = f"{again}: step {old.step + 1} was heard of, it goes on from step {event.step}"
    return (Announce(what=What.REPLAYED, why=why, job=job.job, generation=job.generation),)


def on_step(state: State, event: StepSeen) -> State:
    """Remember the newest step of the current generation; an older one changes nothing."""
    job = state.jobs.get(event.job)
    if job is None or job.is_over or job.run is None or job.run.number != event.generation:
        return state
    old = state.seen.progress.get(event.job)
    is_same = old is not None and old.generation == event.generation
    if old is not None and is_same and event.step <= old.step:
        return state
    step_s = event.step_s
    if old is not None and is_same:
        step_s = old.step_s + SMOOTHING * (event.step_s - old.step_s)
    progress = Progress(
        generation=event.generation,
        step=event.step,
        loss=event.loss,
        step_s=step_s,
        recoverable=event.recoverable,
    )
    return _with(state, replace(state.seen, progress={**state.seen.progress, event.job: progress}))


def on_tick(state: State, event: Ticked) -> tuple[State, tuple[AnyAction, ...]]:
    """Raise each crossed threshold once; after the manager itself stood still, nodes get a fresh lease."""
    seen = state.seen
    last_s = seen.last_tick_s
    if last_s is not None and event.at_s - last_s > state.config.tick_gap_s:
        seen = replace(seen, stood_still_until_s=event.at_s)
    seen = silence.attended(state.config, seen, event.at_s)
    state = _with(state, replace(seen, last_tick_s=event.at_s))
    crossed = {timer for timer in timers(state) if timer.deadline_s <= event.at_s}
    new = sorted(crossed - seen.raised, key=lambda timer: (timer.deadline_s, timer.subject))
    state = _with(state, replace(state.seen, raised=frozenset(crossed)))
    passed = tuple(
        DeadlinePassed(at_s=event.at_s, subject=timer.subject, deadline_s=timer.deadline_s) for timer in new
    )
    crossings: tuple[DeadlinePassed | NodeSilent, ...] = (*silence.verdicts(state, event.at_s), *passed)
    return state, tuple(RaiseDurable(event=crossing) for crossing in crossings)


def _with(state: State, seen: Seen) -> State:
    return replace(state, seen=seen)
