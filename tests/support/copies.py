"""A vault of this process, and fleets whose ranks keep copies in vaults, this one or real ones."""

import contextlib
from collections.abc import Callable, Iterator, Sequence

from torch import Tensor

from tests.support.fleet import Fleet, Snapshot
from varuna_runtime.spec.copies import CopiedTensor, Copy, CopyRecord
from varuna_runtime.spec.errors import CopyGone, VaultLost, VaultRefused
from varuna_runtime.worker.buddies import Line
from varuna_runtime.worker.copy_layout import tensor_over
from varuna_runtime.worker.copying import Copying
from varuna_runtime.worker.keeping import Keeper, Owner
from varuna_runtime.worker.tiers import Copies, Donor

JOB = "j"
WAIT_S = 60.0


class MemoryBuffer:
    """Memory for one copy; `record` is None while it is none."""

    def __init__(self, num_bytes: int) -> None:
        self.memory = memoryview(bytearray(num_bytes))
        self.record: CopyRecord | None = None

    def begin(self) -> None:
        self.record = None

    def seal(self, record: CopyRecord) -> None:
        self.record = record


class MemoryVault:
    """Keeps copies like a real vault, as own memory, as a buddy and as a donor."""

    def __init__(self, *, limit_bytes: int = 1 << 30) -> None:
        self.limit_bytes = limit_bytes
        self.is_down = False
        self.lost_after = -1  # so many tensors are still given; then it is down
        self.retired: list[int] = []
        self._buffers: list[MemoryBuffer] = []

    def allocate(
        self, *, generation: int, rank: int, num_bytes: int
    ) -> tuple[MemoryBuffer, MemoryBuffer] | None:
        self._answer()
        if 2 * num_bytes > self.limit_bytes:
            return None
        pair = MemoryBuffer(num_bytes), MemoryBuffer(num_bytes)
        self._buffers += pair
        return pair

    def store(self, record: CopyRecord, memory: memoryview) -> None:
        self._answer()
        if len(memory) > self.limit_bytes:
            raise VaultRefused("over its limit")
        buffer = MemoryBuffer(len(memory))
        buffer.memory[:] = memory
        buffer.seal(record)
        self._buffers.append(buffer)

    def inventory(self) -> tuple[Copy, ...]:
        self._answer()
        return tuple(buffer.record.copy for buffer in self._buffers if buffer.record is not None)

    @contextlib.contextmanager
    def reading(self, copy: Copy) -> Iterator["MemoryReading"]:
        self._answer()
        for buffer in self._buffers:
            if buffer.record is not None and buffer.record.copy == copy:
                yield MemoryReading(self, buffer.record, buffer.memory)
                return
        raise CopyGone("not here")

    def retire(self, before_generation: int) -> None:
        self.retired.append(before_generation)

    def close(self) -> None:
        pass

    def give(self) -> None:
        """One more tensor is asked for."""
        self._answer()
        if self.lost_after == 0:
            self.is_down = True
        self.lost_after -= 1
        self._answer()

    def _answer(self) -> None:
        if self.is_down:
            raise VaultLost("it is down")


class MemoryReading:
    """A copy, open."""

    def __init__(self, vault: MemoryVault, record: CopyRecord, memory: memoryview) -> None:
        self._vault = vault
        self._memory = memory
        self.record = record

    def tensors(self, places: Sequence[CopiedTensor]) -> Iterator[tuple[CopiedTensor, Tensor]]:
        for place in places:
            self._vault.give()
            yield place, tensor_over(self._memory, place)


class Clock:
    """A clock that stands still unless it is set, so that copies cost nothing."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def keeper_of(
    fleet: Fleet,
    rank: int,
    own: object,
    buddies: Sequence[object] = (),
    *,
    generation: int = 1,
    clock: Callable[[], float] = lambda: 0.0,
    on_made: Callable[[], object] = lambda: None,
    reopen: Callable[[], object] = lambda: None,
    pause: Callable[[float], object] = lambda pause_s: None,
) -> Keeper:
    """Return the keeper of one rank; `own` and `buddies` are vaults."""
    layout = fleet.plan.layout
    owner = Owner(
        job=JOB,
        generation=generation,
        rank=rank,
        replica=layout.replica_of(rank),
        replicas=layout.replicas,
        is_shared=fleet.engines[rank].is_shared,
    )
    lines = [Line(f"n{n}", lambda buddy=buddy: buddy, clock) for n, buddy in enumerate(buddies)]  # type: ignore[misc]
    engine = fleet.engines[rank]
    return Keeper(
        engine, own, lines, owner, clock=clock, busy=clock, on_made=on_made, reopen=reopen, pause=pause
    )  # type: ignore[arg-type]


class KeptFleet:
    """A fleet of which every rank has a vault of its own, and the next rank's as its buddy if it has any."""

    def __init__(
        self, fleet: Fleet, owns: Sequence[object], buddies: Sequence[object] = (), *, generation: int = 1
    ) -> None:
        self.fleet = fleet
        ranks = range(len(fleet.engines))
        self.clock = Clock()
        self.keepers = [
            keeper_of(fleet, r, owns[r], buddies[r : r + 1], generation=generation, clock=self.clock)
            for r in ranks
        ]
        self.kept: list[int] = []
        self.copying = [
            Copying(engine, keeper, on_kept=self.kept.append, clock=self.clock)
            for engine, keeper in zip(fleet.engines, self.keepers, strict=True)
        ]
        self.wait()

    def train(self, num_steps: int) -> Snapshot:
        """Train and keep whatever the votes say."""
        for _ in range(num_steps):
            snapshot = self.fleet.train(1)
            for copying in self.copying:
                copying.follow(snapshot.steps[-1])
            self.wait()
        return snapshot

    def wait(self) -> None:
        """Wait until no copy is under way."""
        for keeper in self.keepers:
            assert keeper.wait_done(WAIT_S)


def load(fleet: Fleet, donors: Sequence[Donor]) -> None:
    """Load the newest version there is on every rank, each with another donor as its own."""
    for rank, engine in enumerate(fleet.engines):
        own, *others = [*donors[rank % len(donors) :], *donors[: rank % len(donors)]]
        copies = Copies(own, others, engine.needed_segments, first=rank)
        copies.look(WAIT_S)
        copies.load(copies.versions[0], engine.load_pieces)
