"""Agents as the core sees them: what each is about to say, and when. No event is fed here."""

from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache

from varuna_manager.core import events as e
from varuna_manager.core.actions import StartRanks
from varuna_manager.whatif.scenario import Costs, Machines
from varuna_runtime.spec.generation import Cause, Endpoint
from varuna_runtime.spec.layout import Plan


@dataclass(slots=True, kw_only=True)
class Agent:
    """One incarnation of a node's agent; it runs at most one generation."""

    node: str
    incarnation: str
    is_alive: bool = True
    warm_s: float | None = None  # when its launcher is ready
    start: StartRanks | None = None  # of the generation it runs

    @property
    def generation(self) -> int:
        """The generation it runs, or 0."""
        return self.start.generation if self.start else 0

    @property
    def ranks(self) -> tuple[int, ...]:
        """The ranks it runs."""
        return self.start.ranks if self.start else ()

    def runs(self, generation: int) -> bool:
        """Return True if it can still speak for ranks of that generation."""
        return self.is_alive and self.start is not None and self.start.generation == generation

    def warmed_at(self, now_s: float, costs: Costs) -> float:
        """Return when its launcher is ready; it is opened now if it was not before."""
        if self.warm_s is None:
            self.warm_s = now_s + costs.warm_s
        return max(now_s, self.warm_s)

    def hello(self, at_s: float, machines: Machines, device_kind: str) -> e.NodeJoined:
        """Return its first message."""
        return e.NodeJoined(
            at_s=at_s,
            node=self.node,
            incarnation=self.incarnation,
            slots=machines.slots,
            device_kind=device_kind,
            memory_bytes=machines.memory_bytes,
            host=self.node,
            notices="recording",
            pid=1,
            running=(),
        )

    def placed(self, at_s: float, price: float) -> e.NodesPlaced:
        """Return what its provider says of it."""
        place = e.Place(node=self.node, domain="")
        return e.NodesPlaced(at_s=at_s, pool="recording", places=(place,), price_per_hour=price)

    def noticed(self, at_s: float, until_s: float) -> e.NoticeReceived:
        """Return that its node vanishes at a time."""
        return e.NoticeReceived(
            at_s=at_s,
            node=self.node,
            incarnation=self.incarnation,
            deadline_s=until_s,
            source="recording",
        )

    def disconnected(self, at_s: float) -> e.NodeDisconnected:
        """Return that its stream ended."""
        return e.NodeDisconnected(
            at_s=at_s, node=self.node, incarnation=self.incarnation, reason="its machine is gone"
        )

    def warmed(self, at_s: float, job: str) -> e.NodeWarmed:
        """Return that its launcher is ready."""
        return e.NodeWarmed(
            at_s=at_s, job=job, node=self.node, incarnation=self.incarnation, ok=True, reason=""
        )

    def beat(self, at_s: float) -> e.BeatSeen:
        """Return its sign of life."""
        return e.BeatSeen(at_s=at_s, node=self.node, incarnation=self.incarnation, running=())

    def prepared(self, at_s: float) -> Iterator[e.RankPrepared]:
        """Yield the word of each rank that holds its plan and state."""
        assert self.start is not None
        plan_hash = _hash(self.start.plan)
        for rank in self.ranks:
            yield e.RankPrepared(
                at_s=at_s,
                job=self.start.job,
                generation=self.generation,
                rank=rank,
                plan_hash=plan_hash,
                endpoint=Endpoint(rank=rank, host=self.node, port=1),
                resume_step=self.start.resume_step or 0,
            )

    def active(self, at_s: float) -> Iterator[e.RankReady | e.RankActive]:
        """Yield the words of each rank that begins its first step."""
        assert self.start is not None
        job, generation = self.start.job, self.generation
        for rank in self.ranks:
            yield e.RankReady(at_s=at_s, job=job, generation=generation, rank=rank)
            step = self.start.resume_step or 0
            yield e.RankActive(at_s=at_s, job=job, generation=generation, rank=rank, step=step)

    def drained(self, at_s: float, step: int) -> Iterator[e.RankDrained]:
        """Yield the word of each rank that stopped after `step`, durable."""
        assert self.start is not None
        for rank in self.ranks:
            yield e.RankDrained(
                at_s=at_s, job=self.start.job, generation=self.generation, rank=rank, step=step
            )

    def gone(self, at_s: float) -> e.GenerationGone:
        """Return that no process of its generation is left."""
        assert self.start is not None
        return e.GenerationGone(at_s=at_s, job=self.start.job, generation=self.generation, node=self.node)

    def peer_lost(self, at_s: float, peer: "Agent") -> e.RankFailed:
        """Return that a rank of `peer` no longer answers."""
        assert self.start is not None
        return e.RankFailed(
            at_s=at_s,
            job=self.start.job,
            generation=self.generation,
            rank=self.ranks[0],
            cause=Cause.PEER_LOST,
            message=f"{peer.node} is gone",
            detail="",
            peer_rank=peer.ranks[0],
        )


@lru_cache(maxsize=1)
def _hash(plan: Plan) -> str:
    """Every member of a generation holds the same plan."""
    return plan.hash()
