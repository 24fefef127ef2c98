"""The whole brain: `step(state, event)`; total, deterministic, without clock, randomness, I/O or logs."""

from collections.abc import Iterable

from varuna_manager.core.actions import AnyAction
from varuna_manager.core.config import CoreConfig
from varuna_manager.core.events import AnyEvent, Durable
from varuna_manager.core.state import State


def step(state: State, event: AnyEvent) -> tuple[State, tuple[AnyAction, ...]]:
    """Return the next state and what must be done; durable events read and write durable state only."""
    return state, ()


def replay(events: Iterable[Durable], config: CoreConfig) -> State:
    """Return the state after a journal; its volatile part is empty and no action is due."""
    state = State(config=config)
    for event in events:
        state, _ = step(state, event)
    return state
