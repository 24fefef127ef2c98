"""Perfect agents and a toy planner around the pure core, in virtual time: the loop of `core_sim.Sim`.

Agents answer every action at once, unless the answer's word is held; answers of a disconnected agent wait
for its return. Everything journaled is kept, so that a replay can be compared at any time.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.support.core_records import PROFILE, plan_for
from varuna_manager.core import actions as a
from varuna_manager.core import events as e
from varuna_manager.core.config import CoreConfig
from varuna_manager.core.journal import is_durable
from varuna_manager.core.state import State
from varuna_manager.core.step import step
from varuna_runtime.spec.generation import Endpoint, GenerationKind, Running
from varuna_runtime.spec.layout import Infeasible


@dataclass
class Agent:
    """One node's agent as the core sees it."""

    node: str
    incarnation: str
    kind: str = "cpu:avx2"
    slots: int = 1
    is_connected: bool = True
    is_alive: bool = True
    is_frozen: bool = False
    can_warm: bool = True
    running: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    outbox: list[e.Durable] = field(default_factory=list)
    inbox: list[a.AnyAction] = field(default_factory=list)

    @property
    def is_reachable(self) -> bool:
        return self.is_alive and self.is_connected and not self.is_frozen


class AgentLoop:
    """Feeds events to `step` and lets the agents obey what comes out."""

    def __init__(self, config: CoreConfig | None = None) -> None:
        self.config = config or CoreConfig()
        self.state = State(config=self.config)
        self.now_s = 1000.0
        self.journal: list[e.Durable] = []
        self.actions: list[a.AnyAction] = []
        self.agents: dict[str, Agent] = {}
        self.held: set[str] = set()
        self.waiting: list[tuple[str, Agent | None, e.Durable]] = []
        self.steps: dict[str, int] = {}
        self.max_nodes_planned = 10_000
        self.is_feasible = True
        self._queue: deque[e.AnyEvent] = deque()
        self._is_draining_queue = False
        self.feed(e.ManagerStarted(at_s=self.now_s, epoch=1))

    def feed(self, *events: e.AnyEvent) -> None:
        """Feed events and everything they cause until nothing moves."""
        self._queue.extend(events)
        if self._is_draining_queue:
            return
        self._is_draining_queue = True
        try:
            while self._queue:
                self._one(self._queue.popleft())
        finally:
            self._is_draining_queue = False

    def _one(self, event: e.AnyEvent) -> None:
        if is_durable(event):
            self.journal.append(event)  # type: ignore[arg-type]
        self.state, done = step(self.state, event)
        for action in done:
            self.actions.append(action)
            self._dispatch(action)

    def _dispatch(self, action: a.AnyAction) -> None:
        match action:
            case a.RaiseDurable():
                self.feed(action.event)
            case a.FindProfile():
                self._answer("find", None, e.ProfileMissing(at_s=self.now_s, job=action.job))
            case a.MakePlan():
                self._answer("plan", None, self._plan(action))
            case a.Announce():
                pass
            case _:
                self._deliver(action)

    def _plan(self, action: a.MakePlan) -> e.PlanMade:
        request = action.request
        nodes = [(n.node, n.slots) for n in request.nodes][: self.max_nodes_planned]
        outcome = plan_for(nodes, request.batch) if self.is_feasible else Infeasible(reason="does not fit")
        return e.PlanMade(at_s=self.now_s, job=action.job, pool_version=action.pool_version, outcome=outcome)

    def _answer(self, word: str, agent: Agent | None, event: e.Durable) -> None:
        if word in self.held:
            self.waiting.append((word, agent, event))
        elif agent is None:
            self.feed(event)
        else:
            self._report(agent, event)

    def _report(self, agent: Agent, event: e.Durable) -> None:
        if not agent.is_alive:
            return
        if agent.is_reachable:
            self.feed(event)
        else:
            agent.outbox.append(event)

    def _deliver(self, action: a.AnyAction) -> None:
        agent = self.agents.get(action.node)  # type: ignore[union-attr]
        if agent is None or agent.incarnation != action.incarnation:  # type: ignore[union-attr]
            return
        if agent.is_frozen:
            agent.inbox.append(action)
        elif agent.is_reachable:
            self._obey(agent, action)

    def _obey(self, agent: Agent, action: a.AnyAction) -> None:
        match action:
            case a.StartRanks():
                self._start(agent, action)
            case a.WarmNode():
                self._warm(agent, action)
            case a.ActivateRanks():
                self._activate(agent, action)
            case a.DrainRanks():
                self._drain(agent, action.job, action.generation)
            case a.AbortRanks():
                self._gone(agent, action.job, action.generation)
            case a.ForgetJob():
                for job, generation in list(agent.running):
                    if job == action.job:
                        self._gone(agent, job, generation)
            case a.ReleaseNode():
                agent.is_alive = False
                self.feed(self._left(agent, "released"))
            case a.FenceNode():
                agent.running.clear()
                agent.outbox.clear()
                self.join(agent.node, kind=agent.kind, slots=agent.slots)

    def _start(self, agent: Agent, action: a.StartRanks) -> None:
        for job, generation in list(agent.running):
            if job == action.job and generation < action.generation:
                self._gone(agent, job, generation)
        agent.running[action.job, action.generation] = action.ranks
        self.steps[action.job] = action.resume_step or 0
        for rank in action.ranks:
            event = e.RankPrepared(
                at_s=self.now_s,
                job=action.job,
                generation=action.generation,
                rank=rank,
                plan_hash=action.plan.hash(),
                endpoint=Endpoint(rank=rank, host="127.0.0.1", port=0 if rank else 4000),
                resume_step=action.resume_step or 0,
            )
            self._answer("prepare", agent, event)

    def _warm(self, agent: Agent, action: a.WarmNode) -> None:
        event = e.NodeWarmed(
            at_s=self.now_s,
            job=action.job,
            node=agent.node,
            incarnation=agent.incarnation,
            ok=agent.can_warm,
            reason="" if agent.can_warm else "no module named data",
        )
        self._answer("warm", agent, event)

    def _activate(self, agent: Agent, action: a.ActivateRanks) -> None:
        ranks = agent.running.get((action.job, action.generation), ())
        job = self.state.jobs[action.job]
        if job.run is not None and job.run.kind is GenerationKind.PROFILE:
            self._measured(agent, action, ranks)
            return
        for rank in ranks:
            at = {"at_s": self.now_s, "job": action.job, "generation": action.generation, "rank": rank}
            self._answer("active", agent, e.RankReady(**at))
            self._answer("active", agent, e.RankActive(**at, step=self.steps[action.job]))

    def _measured(self, agent: Agent, action: a.ActivateRanks, ranks: Iterable[int]) -> None:
        for rank in ranks:
            event = e.RankFinished(
                at_s=self.now_s,
                job=action.job,
                generation=action.generation,
                rank=rank,
                step=0,
                weights_sha256="",
            )
            self._answer("profile", agent, event)
            if rank == 0:
                ready = e.ProfileReady(at_s=self.now_s, job=action.job, profile=PROFILE)
                self._answer("profile", agent, ready)

    def _drain(self, agent: Agent, job: str, generation: int) -> None:
        for rank in agent.running.get((job, generation), ()):
            event = e.RankDrained(
                at_s=self.now_s, job=job, generation=generation, rank=rank, step=self.steps[job]
            )
            self._answer("drain", agent, event)
        self._gone(agent, job, generation, word="drain")

    def _gone(self, agent: Agent, job: str, generation: int, word: str = "gone") -> None:
        if word not in self.held:
            agent.running.pop((job, generation), None)
        event = e.GenerationGone(at_s=self.now_s, job=job, generation=generation, node=agent.node)
        self._answer(word, agent, event)

    def join(self, node: str, *, kind: str = "cpu:avx2", slots: int = 1, can_warm: bool = True) -> None:
        """A new incarnation of the node says hello."""
        old = self.agents.get(node)
        number = int(old.incarnation.split("#")[1]) + 1 if old else 1
        self.agents[node] = Agent(
            node=node, incarnation=f"{node}#{number}", kind=kind, slots=slots, can_warm=can_warm
        )
        self.feed(self._hello(self.agents[node]))

    def _hello(self, agent: Agent) -> e.NodeJoined:
        running = tuple(
            Running(job=job, generation=generation, ranks=ranks)
            for (job, generation), ranks in sorted(agent.running.items())
        )
        return e.NodeJoined(
            at_s=self.now_s,
            node=agent.node,
            incarnation=agent.incarnation,
            slots=agent.slots,
            device_kind=agent.kind,
            memory_bytes=1 << 30,
            host="127.0.0.1",
            notices="file",
            pid=1,
            running=running,
        )

    def _left(self, agent: Agent, reason: str) -> e.NodeLeft:
        return e.NodeLeft(at_s=self.now_s, node=agent.node, incarnation=agent.incarnation, reason=reason)
