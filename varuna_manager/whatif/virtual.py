"""The manager's core in virtual time: it hears what it would have heard, when it would have heard it."""

from collections.abc import Callable, Iterable
from functools import partial

from varuna_manager.core.actions import AnyAction, RaiseDurable
from varuna_manager.core.config import CoreConfig
from varuna_manager.core.deadlines import timers
from varuna_manager.core.events import AnyEvent, BeatSeen, Ticked
from varuna_manager.core.state import State
from varuna_manager.core.step import step
from varuna_manager.whatif.agenda import Agenda

TICK_S = 0.5
"""How often the core looks at its timers while a node is silent; after a longer gap it forgives silence."""


class VirtualCore:
    """Feeds the core; what it wants done goes to `obey`, which answers through `later` or the agenda."""

    def __init__(self, config: CoreConfig, obey: Callable[[AnyAction], None]) -> None:
        self.state = State(config=config)
        self.agenda = Agenda()
        self.now_s = 0.0
        self._obey = obey

    def feed(self, *events: AnyEvent) -> None:
        """Let the core hear events now."""
        for event in events:
            self.state, wanted = step(self.state, event)
            for action in wanted:
                if isinstance(action, RaiseDurable):
                    self.later(0.0, action.event)
                else:
                    self._obey(action)

    def later(self, in_s: float, *events: AnyEvent) -> None:
        """Let the core hear events after a while."""
        self.agenda.add(self.now_s + in_s, partial(self.feed, *events))

    def turn(self, now_s: float, beats: Iterable[BeatSeen]) -> None:
        """Do all that is due now; first the core hears its nodes and looks at its timers."""
        self.feed(*beats, Ticked(at_s=now_s))
        self.agenda.run_due(now_s)

    def schedule_look(self) -> None:
        """Nodes that live beat all the time, so only the timers of jobs and of silent nodes can pass."""
        nodes = self.state.nodes.values()
        beating = {f"node:{node.node}" for node in nodes if node.is_connected}
        pending = [
            timer.deadline_s
            for timer in timers(self.state)
            if timer.deadline_s > self.now_s and timer.subject not in beating
        ]
        if any(not node.is_connected and not node.is_gone for node in nodes):
            pending.append(self.now_s + TICK_S)
        if pending:
            self.agenda.add(min(pending), _nothing)


def _nothing() -> None:
    """A moment at which the core only looks at its timers."""
