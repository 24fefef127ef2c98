"""Vaults of the simulated nodes: what copies are where, and what a rank finds when it looks."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from varuna_manager.core import actions as a
from varuna_runtime.spec.copies import Copy, Version, loadable

_KEPT = 2  # the newest copies of a rank and generation


@dataclass
class FakeVault:
    """The copies in the memory of one node's agent process; `port` 0: it keeps none."""

    port: int
    copies: list[Copy] = field(default_factory=list)

    def put(self, copy: Copy) -> None:
        """Keep a copy and the one before it."""
        if self.port == 0 or copy in self.copies:
            return
        same = [c for c in self.copies if _place(c) == _place(copy)]
        oldest = sorted(same, key=lambda c: c.version)[: max(0, len(same) + 1 - _KEPT)]
        self.copies = [c for c in self.copies if c not in oldest] + [copy]

    def retire(self, job: str, generation: int) -> None:
        """Drop what older generations left."""
        self.copies = [c for c in self.copies if c.job != job or c.version.generation >= generation]

    def forget(self, job: str) -> None:
        """Drop all of a job."""
        self.copies = [c for c in self.copies if c.job != job]


def _place(copy: Copy) -> tuple[str, int, int]:
    return copy.job, copy.version.generation, copy.rank


@dataclass(frozen=True)
class Part:
    """One rank of a generation as its agent was told to start it."""

    start: a.StartRanks
    rank: int

    @property
    def needed(self) -> range:
        """Its segments."""
        stage = self.start.plan.stages[self.start.plan.layout.stage_of(self.rank)]
        return range(stage.first, stage.last)

    def offer(self, stored: int, vaults: Iterable[FakeVault]) -> tuple[Version, ...]:
        """Return what it can load out of these and the store, whose newest step is `stored`."""
        durable = Version(step=stored, generation=0)
        return (*in_memory(vaults, self.start.job, self.needed), durable)

    def copy(self, step: int) -> Copy:
        """Return its own copy of a step."""
        layout = self.start.plan.layout
        return Copy(
            job=self.start.job,
            version=Version(step=step, generation=self.start.generation),
            rank=self.rank,
            replica=layout.replica_of(self.rank),
            replicas=layout.replicas,
            segments=tuple(self.needed),
            is_shared=self.start.spec.shard_optimizer,
            num_bytes=64,
        )


def in_memory(vaults: Iterable[FakeVault], job: str, needed: Collection[int]) -> tuple[Version, ...]:
    """Return the versions of which these vaults together hold the segments whole, newest first."""
    return loadable((c for vault in vaults for c in vault.copies if c.job == job), needed)
