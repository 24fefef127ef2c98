"""Commands over a simulated pool: what people, clouds, nodes and ranks do to the core, in virtual time."""

from dataclasses import replace

from tests.support.core_agents import Agent, AgentLoop
from tests.support.core_records import MODEL, job_spec
from varuna_manager.core import actions as a
from varuna_manager.core import events as e
from varuna_manager.core.state import Job, Node
from varuna_manager.core.step import replay
from varuna_runtime.spec.generation import Cause

HOLDABLE = ("find", "profile", "plan", "prepare", "active", "kept", "drain", "gone", "warm")


class Sim(AgentLoop):
    """Commands are methods; `actions` is everything the core wanted done."""

    def hold(self, *words: str) -> None:
        """Keep answers of these kinds back."""
        assert set(words) <= set(HOLDABLE), words
        self.held |= set(words)

    def release(self, *words: str) -> None:
        """Give the held answers of these kinds, in order, and stop holding; they are heard now."""
        self.held -= set(words)
        out = [w for w in self.waiting if w[0] in words]
        self.waiting = [w for w in self.waiting if w[0] not in words]
        for _, agent, held in out:
            event = replace(held, at_s=self.now_s)
            if isinstance(event, e.GenerationGone) and agent is not None:
                agent.running.pop((event.job, event.generation), None)
            if agent is None:
                self.feed(event)
            elif agent.is_alive:
                self._report(agent, event)

    def rejoin(self, node: str) -> None:
        """The same incarnation reconnects and sends what it could not send before."""
        agent = self.agents[node]
        agent.is_connected = True
        self.feed(self._hello(agent))
        outbox, agent.outbox = agent.outbox, []
        if self.agents[node] is agent:
            self.feed(*outbox)

    def disconnect(self, node: str) -> None:
        """The stream ends; the agent and its ranks live on."""
        agent = self.agents[node]
        agent.is_connected = False
        self.feed(
            e.NodeDisconnected(
                at_s=self.now_s, node=node, incarnation=agent.incarnation, reason="stream ended"
            )
        )

    def kill(self, node: str) -> None:
        """kill -9 of the agent and all its processes; peers report the loss."""
        agent = self.agents[node]
        agent.is_alive = False
        self.disconnect(node)
        for job, generation, rank in self._peers(agent):
            self.fail(job, rank, Cause.PEER_LOST, f"{node} is gone", generation=generation)

    def _peers(self, agent: Agent) -> list[tuple[str, int, int]]:
        return [
            (job, generation, ranks[0])
            for job, generation in agent.running
            for peer in self.agents.values()
            if peer is not agent and peer.is_reachable
            for ranks in [peer.running.get((job, generation), ())]
            if ranks
        ]

    def left(self, node: str, reason: str = "gone from its provider") -> None:
        """The provider says the node is gone."""
        self.agents[node].is_alive = False
        self.feed(self._left(self.agents[node], reason))

    def freeze(self, node: str) -> None:
        """SIGSTOP: nothing is sent, nothing is read, the stream stays."""
        self.agents[node].is_frozen = True

    def thaw(self, node: str) -> None:
        """SIGCONT: first what the manager sent meanwhile, then what was left to say."""
        agent = self.agents[node]
        agent.is_frozen = False
        inbox, agent.inbox = agent.inbox, []
        for action in inbox:
            self._obey(agent, action)
        if self.agents[node] is agent:
            outbox, agent.outbox = agent.outbox, []
            self.feed(*outbox)

    def drop(self, node: str) -> None:
        """The agent forgets its processes without a word."""
        self.agents[node].running.clear()

    def notice(self, node: str, in_s: float, *, source: str = "file", is_urgent: bool = False) -> None:
        incarnation = self.agents[node].incarnation
        self.feed(
            e.NoticeReceived(
                at_s=self.now_s,
                node=node,
                incarnation=incarnation,
                deadline_s=self.now_s + in_s,
                source=source,
                is_urgent=is_urgent,
            )
        )

    def cancel_notice(self, node: str) -> None:
        incarnation = self.agents[node].incarnation
        self.feed(e.NoticeCancelled(at_s=self.now_s, node=node, incarnation=incarnation))

    def drain(self, node: str) -> None:
        self.feed(e.NodeDrainRequested(at_s=self.now_s, node=node, user="ola"))

    def submit(self, job: str, **spec: object) -> None:
        self.feed(
            e.JobSubmitted(
                at_s=self.now_s,
                job=job,
                spec=job_spec(job, **spec),
                model=MODEL,
                bundle="b" * 64,
                user="ana",
                request_id=f"r-{job}",
            )
        )

    def cancel(self, job: str) -> None:
        self.feed(e.CancelRequested(at_s=self.now_s, job=job, user="ana"))

    def train(self, job: str, num_steps: int) -> None:
        """Commit steps of the current generation."""
        run = self.state.jobs[job].run
        assert run is not None
        members = [self.agents[name] for name in run.members]
        if self.has_vaults and not all(agent.computes(job, run.number) for agent in members):
            return
        for _ in range(num_steps):
            index = self.steps[job]
            self.steps[job] = index + 1
            if self.has_vaults and self.keep(job, run.number):
                self.tell_kept(job, run.number)
            self.feed(
                e.StepSeen(
                    at_s=self.now_s,
                    job=job,
                    generation=run.number,
                    step=index,
                    loss=1.0 / (index + 1),
                    samples=32,
                    step_s=0.5,
                    loss_hex=(1.0 / (index + 1)).hex(),
                )
            )

    def durable(self, job: str, number: int | None = None) -> None:
        """The manifest of the newest step exists."""
        generation = self.state.jobs[job].generation
        at = number if number is not None else self.steps[job]
        self.feed(e.StepDurable(at_s=self.now_s, job=job, generation=generation, step=at))

    def save_failed(self, job: str, reason: str) -> None:
        """The newest step could not be saved."""
        generation = self.state.jobs[job].generation
        self.feed(
            e.SaveFailed(
                at_s=self.now_s,
                job=job,
                generation=generation,
                rank=0,
                step=self.steps[job],
                reason=reason,
            )
        )

    def fail(
        self,
        job: str,
        rank: int,
        cause: Cause,
        message: str = "",
        *,
        generation: int | None = None,
        peer_rank: int | None = None,
    ) -> None:
        """A rank of the current generation (or of the given one) ends early."""
        number = self.state.jobs[job].generation if generation is None else generation
        self.feed(
            e.RankFailed(
                at_s=self.now_s,
                job=job,
                generation=number,
                rank=rank,
                cause=cause,
                message=message,
                detail="",
                peer_rank=peer_rank,
            )
        )

    def finish(self, job: str) -> None:
        """Every rank reaches the end of the training."""
        run = self.state.jobs[job].run
        assert run is not None
        for rank in run.ranks:
            agent = self.agents[run.plan.placement[rank].node]
            event = e.RankFinished(
                at_s=self.now_s,
                job=job,
                generation=run.number,
                rank=rank,
                step=MODEL.num_steps,
                weights_sha256="" if rank else "f" * 64,
            )
            self._report(agent, event)
        for node in run.members:
            self._gone(self.agents[node], job, run.number)

    def pass_time(self, seconds: float, tick_s: float = 0.5) -> None:
        """Let time pass, with beats of every agent that can be heard."""
        for _ in range(round(seconds / tick_s)):
            self.now_s += tick_s
            for agent in list(self.agents.values()):
                if agent.is_reachable:
                    beat = e.BeatSeen(
                        at_s=self.now_s, node=agent.node, incarnation=agent.incarnation, running=()
                    )
                    self.feed(beat)
            self.feed(e.Ticked(at_s=self.now_s))

    def restart(self) -> None:
        """kill -9 of the manager, replay, a new epoch; every connection is gone, questions are lost."""
        self.state = replay(self.journal, self.config)
        self.waiting = [w for w in self.waiting if w[1] is not None]
        for agent in self.agents.values():
            agent.is_connected = False
        self.feed(e.ManagerStarted(at_s=self.now_s, epoch=self.state.epoch + 1))

    def return_all(self) -> None:
        """Every living agent reconnects."""
        for node, agent in sorted(self.agents.items()):
            if agent.is_alive and not agent.is_connected and not agent.is_frozen:
                self.rejoin(node)

    def job(self, job: str) -> Job:
        return self.state.jobs[job]

    def node(self, node: str) -> Node:
        return self.state.nodes[node]

    def all_of(self, kind: type[a.AnyAction]) -> list[a.AnyAction]:
        return [action for action in self.actions if isinstance(action, kind)]
