"""Perfect agents and a toy planner around the pure core, in virtual time: the loop of `core_sim.Sim`.

Agents answer every action at once, unless the answer's word is held; answers of a disconnected agent wait
for its return. Everything journaled is kept, so that a replay can be compared at any time.
"""

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tests.support.core_records import PROFILE, pipeline_for, plan_for
from tests.support.core_vaults import FakeVault, Part, in_memory
from varuna_manager.core import actions as a
from varuna_manager.core import events as e
from varuna_manager.core.config import CoreConfig
from varuna_manager.core.journal import is_durable
from varuna_manager.core.state import State
from varuna_manager.core.step import step
from varuna_runtime.spec.copies import Version
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
    pid: int = 1
    vault: FakeVault = field(default_factory=lambda: FakeVault(port=0))
    running: dict[tuple[str, int], tuple[int, ...]] = field(default_factory=dict)
    parts: dict[tuple[str, int], tuple[Part, ...]] = field(default_factory=dict)
    stopping: set[tuple[str, int]] = field(default_factory=set)
    outbox: list[e.Durable] = field(default_factory=list)
    inbox: list[a.AnyAction] = field(default_factory=list)

    @property
    def is_reachable(self) -> bool:
        return self.is_alive and self.is_connected and not self.is_frozen

    def computes(self, job: str, generation: int) -> bool:
        return self.is_alive and not self.is_frozen and (job, generation) in self.running


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
        self.has_vaults = False
        self.has_pipelines = False
        self.has_store = True
        self.kept: set[tuple[str, int]] = set()
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
        planned = pipeline_for if self.has_pipelines else plan_for
        outcome = planned(nodes, request.batch) if self.is_feasible else Infeasible(reason="does not fit")
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
                self._drain(agent, action)
            case a.AbortRanks():
                self._gone(agent, action.job, action.generation)
            case a.RetireCopies():
                agent.vault.retire(action.job, action.generation)
            case a.ForgetJob():
                agent.vault.forget(action.job)
                for job, generation in list(agent.running):
                    if job == action.job:
                        self._gone(agent, job, generation)
            case a.ReleaseNode():
                agent.is_alive = False
                self.feed(self._left(agent, "released"))
            case a.FenceNode():
                agent.running.clear()
                agent.outbox.clear()
                self.join(agent.node, kind=agent.kind, slots=agent.slots, process=agent)

    def _start(self, agent: Agent, action: a.StartRanks) -> None:
        for job, generation in list(agent.running):
            if job == action.job and generation < action.generation:
                self._gone(agent, job, generation)
        agent.running[action.job, action.generation] = action.ranks
        self.steps[action.job] = action.resume_step or 0
        key = action.job, action.generation
        agent.parts[key] = tuple(Part(start=action, rank=rank) for rank in action.ranks)
        for part in agent.parts[key]:
            rank, offer = part.rank, self._offer(agent, part)
            event = e.RankPrepared(
                at_s=self.now_s,
                job=action.job,
                generation=action.generation,
                rank=rank,
                plan_hash=action.plan.hash(),
                endpoint=Endpoint(rank=rank, host="127.0.0.1", port=0 if rank else 4000),
                resume_step=max(offer).step,
                loaded=max(offer) if self.has_vaults else None,
                loadable=tuple(sorted(set(offer), reverse=True)) if self.has_vaults else (),
            )
            self._answer("prepare", agent, event)

    def _offer(self, agent: Agent, part: Part) -> tuple[Version, ...]:
        """Look where the core says; nothing that could be there to find may be left out."""
        named = [self.agents[vault.node] for vault in part.start.vaults]
        stored = part.start.resume_step or 0 if self.has_store else 0
        offer = part.offer(stored, [agent.vault, *(n.vault for n in named if n.is_alive and not n.is_frozen)])
        safe = self.state.jobs[part.start.job].kept_generation
        reachable = [other.vault for other in self.agents.values() if other.is_reachable]
        there = {v for v in in_memory(reachable, part.start.job, part.needed) if v.generation >= safe}
        assert there <= set(offer), f"{part.start.job}: {there} is in memory, {offer} was found"
        return offer

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
        self._adopt(agent, action)
        for rank in ranks:
            at = {"at_s": self.now_s, "job": action.job, "generation": action.generation, "rank": rank}
            self._answer("active", agent, e.RankReady(**at))
            self._answer("active", agent, e.RankActive(**at, step=self.steps[action.job]))

    def _adopt(self, agent: Agent, action: a.ActivateRanks) -> None:
        """Every rank goes on from the version that all can load, and keeps it as its own generation's."""
        if not self.has_vaults or action.resume is None:
            return
        self.steps[action.job] = action.resume.step
        for part in agent.parts.get((action.job, action.generation), ()):
            agent.vault.put(part.copy(action.resume.step))

    def keep(self, job: str, generation: int) -> bool:
        """Copy what every rank has to its own vault and its buddies'; only if all members compute."""
        run = self.state.jobs[job].run
        if run is None or run.number != generation:
            return False
        members = [self.agents[name] for name in run.members]
        if not all(agent.computes(job, generation) for agent in members):
            return False
        for agent in members:
            for part in agent.parts.get((job, generation), ()):
                copy = part.copy(self.steps[job])
                agent.vault.put(copy)
                for buddy in part.start.buddies.get(part.rank, ()):
                    self.agents[buddy.node].vault.put(copy)
        return True

    def tell_kept(self, job: str, generation: int) -> None:
        """Once per generation: its state is safe, its vaults let go of older copies."""
        run = self.state.jobs[job].run
        if run is None or (job, generation) in self.kept:
            return
        self.kept.add((job, generation))
        for name in run.members:
            self.agents[name].vault.retire(job, generation)
        event = e.GenerationKept(
            at_s=self.now_s, job=job, generation=generation, rank=0, step=self.steps[job]
        )
        self._answer("kept", self.agents[run.plan.placement[0].node], event)

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

    def _drain(self, agent: Agent, action: a.DrainRanks) -> None:
        job, generation = action.job, action.generation
        run = self.state.jobs[job].run
        members = [self.agents[name] for name in run.members] if run and self.has_vaults else []
        if action.persist or not all(member.vault.port for member in members):
            self._drained(agent, job, generation, is_kept=False)
            return
        agent.stopping.add((job, generation))
        if all((job, generation) in member.stopping for member in members) and self.keep(job, generation):
            for member in members:
                self._drained(member, job, generation, is_kept=True)

    def _drained(self, agent: Agent, job: str, generation: int, *, is_kept: bool) -> None:
        if not is_kept:  # what was to be said of copies is overtaken
            self.waiting = [held for held in self.waiting if held[:2] != ("drain", agent)]
        for rank in agent.running.get((job, generation), ()):
            event = e.RankDrained(
                at_s=self.now_s,
                job=job,
                generation=generation,
                rank=rank,
                step=self.steps[job],
                is_kept=is_kept,
            )
            self._answer("drain", agent, event)
        self._gone(agent, job, generation, word="drain")

    def _gone(self, agent: Agent, job: str, generation: int, word: str = "gone") -> None:
        if word not in self.held:
            agent.running.pop((job, generation), None)
        event = e.GenerationGone(at_s=self.now_s, job=job, generation=generation, node=agent.node)
        self._answer(word, agent, event)

    def join(
        self,
        node: str,
        *,
        kind: str = "cpu:avx2",
        slots: int = 1,
        can_warm: bool = True,
        process: Agent | None = None,
    ) -> None:
        """A new incarnation of the node says hello; of that agent's process, or of a new one."""
        old = self.agents.get(node)
        number = int(old.incarnation.split("#")[1]) + 1 if old else 1
        self.agents[node] = Agent(
            node=node,
            incarnation=f"{node}#{number}",
            kind=kind,
            slots=slots,
            can_warm=can_warm,
            pid=process.pid if process else number,
            vault=process.vault if process else FakeVault(port=7000 if self.has_vaults else 0),
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
            pid=agent.pid,
            running=running,
            vault_port=agent.vault.port,
        )

    def _left(self, agent: Agent, reason: str) -> e.NodeLeft:
        return e.NodeLeft(at_s=self.now_s, node=agent.node, incarnation=agent.incarnation, reason=reason)
