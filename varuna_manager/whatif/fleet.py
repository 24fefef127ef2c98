"""The nodes of a recording and their agents: they come and go as recorded and do what the core wants."""

from collections.abc import Iterator, Sequence
from functools import partial

from varuna_manager.core import actions as a
from varuna_manager.core import events as e
from varuna_manager.traces import Change
from varuna_manager.whatif.agents import Agent
from varuna_manager.whatif.scenario import Costs, Scenario
from varuna_manager.whatif.training import Training
from varuna_manager.whatif.virtual import VirtualCore


class Fleet:
    """Every agent obeys at once and at the given costs; one whose node is gone is silent."""

    def __init__(self, scenario: Scenario, costs: Costs, core: VirtualCore, training: Training) -> None:
        self._scenario = scenario
        self._costs = costs
        self._core = core
        self._training = training
        self._agents: dict[str, Agent] = {}
        self._draining = 0  # the newest generation that was told to

    def beats(self, at_s: float) -> Iterator[e.BeatSeen]:
        """Yield a sign of life of each living node."""
        return (agent.beat(at_s) for agent in self._agents.values() if agent.is_alive)

    # --- the recording

    def change(self, change: Change) -> None:
        """Nodes vanish without a word, and others come."""
        if change.left:
            self._vanish([self._agents[node] for node in change.left])
        for node in change.joined:
            self._join(node)

    def _join(self, node: str) -> None:
        now_s, machines = self._core.now_s, self._scenario.machines
        old = self._agents.get(node)
        number = int(old.incarnation.rpartition("#")[2]) + 1 if old else 1
        agent = self._agents[node] = Agent(node=node, incarnation=f"{node}#{number}")
        self._core.feed(agent.hello(now_s, machines, self._scenario.device_kind))
        if machines.price is not None:
            self._core.feed(agent.placed(now_s, machines.price))
        until_s = self._scenario.recording.leaves_at(node, now_s)
        if until_s is not None and machines.notice_s > 0:
            warned_s = max(now_s, until_s - machines.notice_s)
            self._core.agenda.add(warned_s, partial(self._warn, agent, until_s))

    def _warn(self, agent: Agent, until_s: float) -> None:
        self._core.feed(agent.noticed(self._core.now_s, until_s))

    def _vanish(self, lost: Sequence[Agent]) -> None:
        now_s = self._core.now_s
        for agent in lost:
            agent.is_alive = False
            if agent.ranks:
                self._training.halt(agent.generation, now_s)
        self._core.agenda.add(now_s + self._costs.detect_s, partial(self._detected, lost))

    def _detected(self, lost: Sequence[Agent]) -> None:
        """The streams have ended, and whoever worked with the lost ones says so."""
        now_s = self._core.now_s
        self._core.feed(*(agent.disconnected(now_s) for agent in lost))
        for agent in list(self._agents.values()):
            peers = [peer for peer in lost if peer.ranks and agent.runs(peer.generation)]
            if peers:
                self._core.feed(agent.peer_lost(now_s, peers[0]))

    # --- what the core wants

    def obey(self, agent_action: "AgentAction") -> None:
        """Let the agent that is meant do it, if it can still be reached."""
        agent = self._agents.get(agent_action.node)
        if agent is None or not agent.is_alive or agent.incarnation != agent_action.incarnation:
            return
        now_s = self._core.now_s
        match agent_action:
            case a.WarmNode():
                warm_s = agent.warmed_at(now_s, self._costs)
                self._core.agenda.add(warm_s, partial(self._warmed, agent, agent_action.job))
            case a.StartRanks():
                self._start(agent, agent_action)
            case a.ActivateRanks() if agent.runs(agent_action.generation):
                self._core.later(0.0, *agent.active(now_s))
            case a.DrainRanks() if agent.runs(agent_action.generation):
                self._drain(agent_action.generation)
            case a.AbortRanks() if agent.runs(agent_action.generation):
                self._abort(agent)
            case a.FenceNode():
                self._core.agenda.add(now_s, partial(self._join, agent.node))
            case _:
                pass  # a job that is over, a node that an operator drained: neither happens in a recording

    def _warmed(self, agent: Agent, job: str) -> None:
        if agent.is_alive:
            self._core.feed(agent.warmed(self._core.now_s, job))

    def _start(self, agent: Agent, start: a.StartRanks) -> None:
        if agent.start is not None:
            self._abort(agent)
        agent.start = start
        ready_s = agent.warmed_at(self._core.now_s, self._costs) + self._costs.morph_s
        self._core.agenda.add(ready_s, partial(self._prepared, agent, start.generation))

    def _prepared(self, agent: Agent, generation: int) -> None:
        if agent.runs(generation):
            self._core.feed(*agent.prepared(self._core.now_s))

    def _abort(self, agent: Agent) -> None:
        self._training.halt(agent.generation, self._core.now_s)
        self._core.later(0.0, agent.gone(self._core.now_s))
        agent.start = None

    def _drain(self, generation: int) -> None:
        """All ranks stop after the step that runs; whoever is told first tells the others."""
        stops_s = self._training.boundary(generation, self._core.now_s)
        if stops_s is not None and generation > self._draining:
            self._draining = generation
            self._core.agenda.add(stops_s, partial(self._stop, generation))

    def _stop(self, generation: int) -> None:
        now_s = self._core.now_s
        if self._training.boundary(generation, now_s) is None:
            return
        self._training.halt(generation, now_s)
        saved_s = now_s + self._costs.save_stall_s + self._costs.save_write_s
        self._core.agenda.add(saved_s, partial(self._drained, generation))

    def _drained(self, generation: int) -> None:
        """The last save is whole only if every member lived until its end."""
        members = [agent for agent in self._agents.values() if agent.runs(generation)]
        start = members[0].start if members else None
        if start is None or {agent.node for agent in members} != set(start.plan.nodes):
            return
        self._training.ledger.save()
        now_s, step = self._core.now_s, self._training.ledger.durable
        for agent in members:
            drained, gone = tuple(agent.drained(now_s, step)), agent.gone(now_s)
            agent.start = None  # the last word of the last may start the next generation
            self._core.feed(*drained, gone)


AgentAction = (
    a.WarmNode
    | a.StartRanks
    | a.ActivateRanks
    | a.DrainRanks
    | a.AbortRanks
    | a.ForgetJob
    | a.RetireCopies
    | a.ReleaseNode
    | a.FenceNode
)
