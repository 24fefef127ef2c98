"""Which memories a vault has, what they hold and who uses them; does no I/O.

A memory is free once it holds no copy and nobody has it open. It stays with its job, so that no job sees what
another left in it, and is handed out again: fresh pages cost several times what the copy does.
"""

from collections import Counter
from dataclasses import dataclass, field

from varuna_runtime.spec.copies import Copy
from varuna_runtime.spec.errors import CopyGone, VaultRefused

_PAGE_BYTES = 4096
_MOST_PUSHED = 2  # copies of one rank of one generation that others sent: one complete while one is filled


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A memory for whoever asked; a new one is still to be made."""

    memory: int
    capacity_bytes: int
    is_new: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Loan:
    """A copy that somebody reads: `Ledger.give_back` tells whether it stayed what it was."""

    memory: int
    stamp: int
    record: bytes
    num_bytes: int


@dataclass(slots=True, kw_only=True)
class _Memory:
    job: str
    capacity_bytes: int
    owner: int | None = None  # the connection that may fill it
    is_pushed: bool = False
    copy: Copy | None = None
    record: bytes = b""
    stamp: int = 0  # counts up whenever the contents become another's
    holders: Counter[int] = field(default_factory=Counter)

    @property
    def is_free(self) -> bool:
        return self.copy is None and not self.holders

    def empty(self) -> None:
        self.copy, self.record = None, b""
        self.stamp += 1


class Ledger:
    """One vault's; connections are numbered by the caller. Memories to close add up in `closed`."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._memories: dict[int, _Memory] = {}
        self._secrets: dict[str, str] = {}
        self._floors: dict[str, int] = {}  # generations below it are retired
        self._num_made = 0
        self._closed: list[int] = []

    # --- jobs ------------------------------------------------------------------------------------------

    def admit(self, job: str, secret: str) -> None:
        """Serve this job from now on."""
        self._secrets[job] = secret

    def secret(self, job: str) -> str | None:
        """Return the job's secret; None for a job that is not served."""
        return self._secrets.get(job)

    def retire(self, job: str, before_generation: int) -> None:
        """Drop the job's copies of older generations, and take no more of them."""
        self._check_job(job)
        self._floors[job] = max(self._floors.get(job, 0), before_generation)
        for memory in self._of(job):
            if memory.copy is not None and memory.copy.version.generation < before_generation:
                memory.empty()

    def forget(self, job: str) -> None:
        """Drop all of the job at once; memory still open somewhere goes when it is let go."""
        self._secrets.pop(job, None)
        self._floors.pop(job, None)
        for memory in self._of(job):
            memory.empty()
        self._sweep()

    def held_jobs(self) -> tuple[str, ...]:
        """Return the jobs of which there are copies, sorted."""
        return tuple(sorted({memory.job for memory in self._memories.values() if memory.copy is not None}))

    # --- filling ---------------------------------------------------------------------------------------

    def allocate(
        self, job: str, generation: int, num_bytes: int, holder: int, *, count: int
    ) -> tuple[Grant, ...] | None:
        """Return `count` memories of at least so many bytes, or None if the limit does not allow them."""
        self._check_generation(job, generation)
        grants: list[Grant] = []
        for _ in range(count):
            grant = self._take(job, num_bytes, holder)
            if grant is None:
                self.discard(tuple(grants), holder)
                return None
            grants.append(grant)
        return tuple(grants)

    def begin(self, memory: int, holder: int) -> None:
        """The owner starts to fill it: it holds no copy from now on, and whoever reads it will learn so."""
        self._owned(memory, holder).empty()

    def seal(self, memory: int, holder: int, copy: Copy, record: bytes) -> None:
        """The owner has filled it."""
        found = self._owned(memory, holder)
        if copy.job != found.job or not 0 <= copy.num_bytes <= found.capacity_bytes:
            raise VaultRefused(f"{copy.num_bytes} bytes of {copy.job} do not belong into this memory")
        self._check_generation(copy.job, copy.version.generation)
        for other in self._of(copy.job):
            if other is not found and other.copy is not None and _key(other.copy) == _key(copy):
                other.empty()  # it was sent or sealed once more
        found.copy, found.record = copy, record
        found.stamp += 1

    def receive(self, copy: Copy, holder: int) -> Grant | None:
        """Return memory for a copy that another node sends, or None if the limit does not allow it.

        Of a rank's earlier ones the newest stays; `deliver` makes it two.
        """
        if copy.num_bytes < 0:
            raise VaultRefused(f"{copy.num_bytes} bytes are no size")
        self._check_generation(copy.job, copy.version.generation)
        earlier = [
            memory
            for memory in self._of(copy.job)
            if memory.is_pushed and memory.copy is not None and _rank(memory.copy) == _rank(copy)
        ]
        earlier.sort(key=lambda memory: memory.copy.version if memory.copy else copy.version)
        for memory in earlier[: max(0, len(earlier) + 1 - _MOST_PUSHED)]:
            memory.empty()
        grant = self._take(copy.job, copy.num_bytes, holder)
        if grant is not None:
            self._memories[grant.memory].is_pushed = True
        return grant

    def deliver(self, memory: int, holder: int, copy: Copy, record: bytes) -> None:
        """What another node sent is here whole."""
        self.seal(memory, holder, copy, record)
        self._memories[memory].owner = None
        self._let_go(memory, holder)

    def discard(self, grants: tuple[Grant, ...], holder: int) -> None:
        """Take back what was just handed out; new memories were never made."""
        for grant in grants:
            self._let_go(grant.memory, holder)
            if grant.is_new:
                del self._memories[grant.memory]

    # --- reading ---------------------------------------------------------------------------------------

    def copies(self, job: str) -> tuple[Copy, ...]:
        """Return what there is of the job, sorted."""
        self._check_job(job)
        return tuple(sorted(memory.copy for memory in self._of(job) if memory.copy is not None))

    def lend(self, copy: Copy, holder: int) -> Loan:
        """Open a copy for reading; its memory goes to nobody else until it is given back."""
        self._check_job(copy.job)
        for number, memory in self._memories.items():
            if memory.copy == copy:
                memory.holders[holder] += 1
                return Loan(memory=number, stamp=memory.stamp, record=memory.record, num_bytes=copy.num_bytes)
        raise CopyGone(f"no copy of rank {copy.rank} at {copy.version} is here")

    def give_back(self, memory: int, stamp: int, holder: int) -> bool:
        """Return whether the copy is still what it was when it was lent."""
        found = self._held(memory, holder)
        is_intact = found.stamp == stamp
        self._let_go(memory, holder)
        return is_intact

    def leave(self, holder: int) -> None:
        """A connection ended: what it was filling is worth nothing, what it had sealed stays."""
        for memory in self._memories.values():
            if memory.owner == holder:
                memory.owner = None
            memory.holders.pop(holder, None)
        self._sweep()

    # --- memory ----------------------------------------------------------------------------------------

    def closed(self) -> tuple[int, ...]:
        """Return the memories that are to be closed since the last call."""
        closed, self._closed = tuple(self._closed), []
        return closed

    @property
    def total_bytes(self) -> int:
        """What all memories take, free ones included."""
        return sum(memory.capacity_bytes for memory in self._memories.values())

    def _take(self, job: str, num_bytes: int, holder: int) -> Grant | None:
        capacity = max(1, -(-num_bytes // _PAGE_BYTES)) * _PAGE_BYTES
        fitting = [
            (memory.capacity_bytes, number)
            for number, memory in self._memories.items()
            if memory.is_free
            and memory.job == job
            and 2 * capacity <= 2 * memory.capacity_bytes <= 3 * capacity
        ]
        if fitting:
            _, number = min(fitting)
            memory = self._memories[number]
        else:
            if not self._make_room(capacity):
                return None
            self._num_made += 1
            number = self._num_made
            memory = self._memories[number] = _Memory(job=job, capacity_bytes=capacity)
        memory.owner, memory.is_pushed = holder, False
        memory.holders[holder] += 1
        return Grant(memory=number, capacity_bytes=memory.capacity_bytes, is_new=not fitting)

    def _make_room(self, num_bytes: int) -> bool:
        """Close free memories, largest first, until so much more fits; copies are never closed for it."""
        free = sorted((m.capacity_bytes, number) for number, m in self._memories.items() if m.is_free)
        if self.total_bytes - sum(size for size, _ in free) + num_bytes > self._limit_bytes:
            return False
        while self.total_bytes + num_bytes > self._limit_bytes:
            self._close(free.pop()[1])
        return True

    def _let_go(self, memory: int, holder: int) -> None:
        found = self._held(memory, holder)
        found.holders[holder] -= 1
        if not found.holders[holder]:
            del found.holders[holder]
        self._sweep()

    def _sweep(self) -> None:
        """Close what is left of jobs that are not served any more."""
        for number, memory in list(self._memories.items()):
            if memory.is_free and memory.job not in self._secrets:
                self._close(number)

    def _close(self, number: int) -> None:
        del self._memories[number]
        self._closed.append(number)

    # --- look-ups --------------------------------------------------------------------------------------

    def _of(self, job: str) -> list[_Memory]:
        return [memory for memory in self._memories.values() if memory.job == job]

    def _held(self, memory: int, holder: int) -> _Memory:
        found = self._memories.get(memory)
        if found is None or not found.holders[holder]:
            raise VaultRefused(f"memory {memory} is not open on this connection")
        return found

    def _owned(self, memory: int, holder: int) -> _Memory:
        found = self._held(memory, holder)
        if found.owner != holder:
            raise VaultRefused(f"memory {memory} belongs to another connection")
        return found

    def _check_job(self, job: str) -> None:
        if job not in self._secrets:
            raise VaultRefused(f"job {job} is not served here")

    def _check_generation(self, job: str, generation: int) -> None:
        self._check_job(job)
        floor = self._floors.get(job, 0)
        if generation < floor:
            raise VaultRefused(f"generation {generation} of {job} is retired; {floor} has its own copies")


def _key(copy: Copy) -> tuple[int, int, int]:
    return (copy.version.step, copy.version.generation, copy.rank)


def _rank(copy: Copy) -> tuple[int, int]:
    return (copy.version.generation, copy.rank)
