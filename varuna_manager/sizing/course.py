"""The accumulator of one pass: what is known, what is remembered, what is decided. Lives inside one call."""

from dataclasses import replace
from typing import Any

from varuna_manager.cloud.provider import Instance, InstancePhase, PoolReading
from varuna_manager.core.events import Durable, ReleaseDecided, Told
from varuna_manager.core.phases import NodePhase
from varuna_manager.core.state import Node, State
from varuna_manager.core.words import What
from varuna_manager.sizing.decisions import Decision, Post, Write
from varuna_manager.sizing.memory import Memory, PoolMemory
from varuna_manager.sizing.settings import Rules, Settings


class Course:
    """Decisions in the order in which they are to be carried out: events first, writes after them."""

    def __init__(self, memory: Memory, state: State, settings: Settings, now_s: float) -> None:
        self.memory = memory
        self.state = state
        self.settings = settings
        self.sizing = settings.sizing
        self.now_s = now_s
        self.fresh: dict[str, PoolReading] = {}  # readings of this very pass
        self.posts: list[Post] = []
        self.writes: list[Write] = []

    @property
    def decisions(self) -> tuple[Decision, ...]:
        """Everything decided."""
        return (*self.posts, *self.writes)

    def pool(self, rules: Rules) -> PoolMemory:
        """Return what is remembered of a pool by now."""
        return self.memory.of(rules.pool)

    def remember(self, rules: Rules, **changes: Any) -> PoolMemory:
        """Change what is remembered of a pool."""
        changed = replace(self.pool(rules), **changes)
        self.memory = self.memory.having(rules.pool, changed)
        return changed

    def post(self, event: Durable) -> None:
        """Give an event to the core."""
        self.posts.append(Post(event=event))

    def tell(self, rules: Rules, what: What, why: str, *, node: str = "") -> None:
        """Add a line to the event list."""
        self.post(Told(at_s=self.now_s, what=what, why=why, who=f"pool {rules.pool}", node=node))

    def end(self, node: str, reason: str) -> None:
        """Decide that a machine ends; the core takes it out of use, or refuses because it has work."""
        if node not in self.state.ending:
            self.post(ReleaseDecided(at_s=self.now_s, node=node, reason=reason))

    def node(self, name: str) -> Node | None:
        """Return the node that joined from a machine; None if it never did, or its agent is gone."""
        node = self.state.nodes.get(name)
        return None if node is None or node.is_gone else node

    def is_living(self, machine: Instance) -> bool:
        """Return True if the machine runs or boots and nobody has decided to end it."""
        return _is_up(machine) and machine.node not in self.state.ending

    def is_doomed(self, machine: Instance) -> bool:
        """Return True if its end is decided, and its provider still counts on it."""
        return _is_up(machine) and machine.node in self.state.ending

    def is_idle_ready(self, name: str) -> bool:
        """Return True if the node could work and has no work."""
        node = self.node(name)
        return node is not None and node.phase is NodePhase.READY and not self.state.is_busy(name)


def _is_up(machine: Instance) -> bool:
    return machine.phase in {InstancePhase.STARTING, InstancePhase.RUNNING} and not machine.is_stray
