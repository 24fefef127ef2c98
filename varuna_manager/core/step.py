"""The whole brain: `step(state, event)`; total, deterministic, without clock, randomness, I/O or logs."""

from collections.abc import Iterable
from typing import assert_never

from varuna_manager.core import deadlines, jobs, nodes, outlook, pace, places, ranks, seen, silence, warmth
from varuna_manager.core.actions import AnyAction
from varuna_manager.core.change import Change
from varuna_manager.core.config import CoreConfig
from varuna_manager.core.events import (
    AnyEvent,
    BeatSeen,
    CancelRequested,
    DeadlinePassed,
    Durable,
    GenerationGone,
    GenerationKept,
    JobSubmitted,
    ManagerStarted,
    NodeDisconnected,
    NodeDrainRequested,
    NodeJoined,
    NodeLeft,
    NodeSilent,
    NodesPlaced,
    NodeWarmed,
    NoticeCancelled,
    NoticeHinted,
    NoticeReceived,
    NoticesChanged,
    PeerSilent,
    PlanMade,
    ProfileMissing,
    ProfileReady,
    ProfileRefreshed,
    RankActive,
    RankDrained,
    RankFailed,
    RankFinished,
    RankPrepared,
    RankReady,
    ReleaseDecided,
    SaveFailed,
    StepDurable,
    StepSeen,
    Ticked,
    Told,
)
from varuna_manager.core.journal import is_durable
from varuna_manager.core.reconcile import reconcile
from varuna_manager.core.state import State


def step(state: State, event: AnyEvent) -> tuple[State, tuple[AnyAction, ...]]:
    """Return the next state and what must be done; durable events read and write durable state only."""
    match event:
        case BeatSeen():
            return seen.on_beat(state, event), ()
        case StepSeen():
            replayed = seen.replay(state, event)
            state, refreshed = pace.on_step(seen.on_step(state, event), event)
            return state, (*replayed, *refreshed)
        case PeerSilent():
            return silence.on_peer_silent(state, event), ()
        case Ticked():
            return seen.on_tick(state, event)
        case _:
            change = Change(state, event.at_s)
            _apply(change, event)
            outlook.observe(change, state)
            reconcile(change, state)
            return change.state, tuple(change.actions)


def replay(events: Iterable[Durable], config: CoreConfig) -> State:
    """Return the state after a journal; its volatile part is empty and no action is due.

    `config` counts until the first ManagerStarted that carries the one in force at that time.
    """
    state = State(config=config)
    for event in events:
        assert is_durable(event), f"a volatile event in the journal: {event}"
        state, _ = step(state, event)
    return state


def _apply(change: Change, event: Durable) -> None:
    match event:
        case ManagerStarted():
            nodes.on_manager_started(change, event)
        case JobSubmitted():
            jobs.on_submitted(change, event)
        case CancelRequested():
            jobs.on_cancel(change, event)
        case NodeJoined():
            nodes.on_joined(change, event)
        case NodeDisconnected():
            nodes.on_disconnected(change, event)
        case NodeLeft():
            nodes.on_left(change, event)
        case NodeDrainRequested():
            nodes.on_drain_requested(change, event)
        case NoticeReceived():
            nodes.on_notice(change, event)
        case NoticeCancelled():
            nodes.on_notice_cancelled(change, event)
        case NoticeHinted():
            nodes.on_notice_hinted(change, event)
        case NoticesChanged():
            nodes.on_notices_changed(change, event)
        case NodesPlaced():
            places.on_placed(change, event)
        case ReleaseDecided():
            nodes.on_release_decided(change, event)
        case Told():
            change.announce(event.what, event.why, who=event.who, node=event.node)
        case ProfileReady():
            jobs.on_profile(change, event)
        case ProfileRefreshed():
            pace.on_refreshed(change, event)
        case ProfileMissing():
            jobs.on_profile_missing(change, event)
        case PlanMade():
            jobs.on_plan(change, event)
        case RankPrepared() | RankReady() | RankActive() | RankDrained() | RankFinished() | RankFailed():
            ranks.on_rank(change, event)
        case StepDurable():
            ranks.on_durable(change, event)
        case SaveFailed():
            ranks.on_save_failed(change, event)
        case GenerationKept():
            ranks.on_kept(change, event)
        case GenerationGone():
            ranks.on_gone(change, event)
        case NodeWarmed():
            warmth.on_warmed(change, event)
        case NodeSilent():
            silence.on_silent(change, event)
        case DeadlinePassed():
            deadlines.on_deadline(change, event)
        case _:
            assert_never(event)
