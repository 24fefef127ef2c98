"""The vault's ledger and its memory together, for many threads."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from varuna_runtime.spec.copies import Copy
from varuna_runtime.spec.errors import VaultRefused
from varuna_runtime.vault.ledger import Grant, Ledger, Loan
from varuna_runtime.vault.memories import Memories


@dataclass(slots=True)
class Reading:
    """A copy that is being read; once the reading is over, `is_intact` says whether it stayed what it was."""

    memory: memoryview
    is_intact: bool = False


class Keeping:
    """`held` is called with the jobs of which there are copies whenever they change, first of all."""

    def __init__(self, limit_bytes: int, held: Callable[[tuple[str, ...]], None]) -> None:
        self._ledger = Ledger(limit_bytes)
        self._memories = Memories()
        self._lock = threading.Lock()
        self._held = held
        self._told: tuple[str, ...] = ()

    @contextmanager
    def ledger(self) -> Iterator[Ledger]:
        """Give the ledger to one thread; what it lets go is closed, what it drops or gains is told."""
        with self._lock:
            try:
                yield self._ledger
            finally:
                for memory in self._ledger.closed():
                    self._memories.close(memory)
                if (jobs := self._ledger.held_jobs()) != self._told:
                    self._told = jobs
                    self._held(jobs)

    def allocate(
        self, job: str, generation: int, num_bytes: int, holder: int
    ) -> tuple[tuple[Grant, int], ...] | None:
        """Return two memories with their descriptors, or None over the limit."""
        if num_bytes < 0:
            raise VaultRefused(f"{num_bytes} bytes are no size")
        with self.ledger() as ledger:
            grants = ledger.allocate(job, generation, num_bytes, holder, count=2)
            if grants is None:
                return None
            self._make(ledger, grants, holder)
            return tuple((grant, self._memories.descriptor(grant.memory)) for grant in grants)

    def lend(self, copy: Copy, holder: int) -> tuple[Loan, int]:
        """Return a loan and a descriptor to read by, which the caller closes."""
        with self.ledger() as ledger:
            loan = ledger.lend(copy, holder)
            return loan, self._memories.open_to_read(loan.memory)

    @contextmanager
    def reading(self, copy: Copy, holder: int) -> Iterator[Reading]:
        """Read a copy's bytes here."""
        with self.ledger() as ledger:
            loan = ledger.lend(copy, holder)
            reading = Reading(self._memories.mapped(loan.memory)[: loan.num_bytes])
        try:
            yield reading
        finally:
            reading.memory.release()
            with self.ledger() as ledger:
                reading.is_intact = ledger.give_back(loan.memory, loan.stamp, holder)

    @contextmanager
    def receiving(self, copy: Copy, record: bytes, holder: int) -> Iterator[memoryview | None]:
        """Give memory to fill with a copy, which it holds once the block ends well; None over the limit."""
        with self.ledger() as ledger:
            grant = ledger.receive(copy, holder)
            if grant is not None:
                self._make(ledger, (grant,), holder)
                memory = self._memories.mapped(grant.memory)[: copy.num_bytes]
        if grant is None:
            yield None
            return
        yield memory  # a block that fails ends its connection, and with it what was being filled
        memory.release()
        with self.ledger() as ledger:
            ledger.deliver(grant.memory, holder, copy, record)

    def _make(self, ledger: Ledger, grants: tuple[Grant, ...], holder: int) -> None:
        for memory in ledger.closed():  # to make room for these
            self._memories.close(memory)
        try:
            for grant in grants:
                if grant.is_new:
                    self._memories.make(grant.memory, grant.capacity_bytes)
        except OSError as err:
            for grant in grants:
                if grant.is_new:
                    self._memories.close(grant.memory)
            ledger.discard(grants, holder)
            raise VaultRefused(f"no memory could be made: {err}") from err
