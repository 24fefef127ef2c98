"""Any history of what workers, peers and the agent do to a ledger, against the plainest account of it."""

from dataclasses import dataclass, field

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tests.support.vaults import a_copy
from varuna_runtime.spec.copies import Copy
from varuna_runtime.spec.errors import CopyGone, VaultRefused
from varuna_runtime.vault.ledger import Grant, Ledger, Loan

PAGE = 4096
LIMIT = 12
HOLDERS = st.integers(1, 3)
STEPS = st.integers(1, 5)
JOBS = st.sampled_from(["j", "k"])


@dataclass
class Page:
    """A memory as a real one would be: what was written into it last, by whom it is open."""

    job: str
    capacity: int
    contents: object = None
    open_by: list[int] = field(default_factory=list)


class Histories(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.ledger = Ledger(LIMIT * PAGE)
        self.pages: dict[int, Page] = {}
        self.owned: dict[int, int] = {}  # memory -> holder that may write
        self.sealed: dict[int, Copy] = {}
        self.loans: list[tuple[int, Loan, Copy, object]] = []
        self.writes = 0
        for job in ("j", "k"):
            self.ledger.admit(job, "s")

    def take(self, grant: Grant, job: str, holder: int) -> None:
        if grant.is_new:
            assert grant.memory not in self.pages
            self.pages[grant.memory] = Page(job, grant.capacity_bytes)
        page = self.pages[grant.memory]
        assert page.job == job, "memory went to another job"
        assert not page.open_by, "memory that somebody has open was handed out"
        assert not self.holds_copy(grant.memory), "a copy was handed out as memory"
        page.open_by.append(holder)
        self.owned[grant.memory] = holder
        self.write(grant.memory)

    def holds_copy(self, memory: int) -> bool:
        copy = self.sealed.get(memory)
        if copy is None or copy not in self.there(copy.job):
            return False
        loan = self.ledger.lend(copy, 99)
        self.ledger.give_back(loan.memory, loan.stamp, 99)
        return loan.memory == memory

    def there(self, job: str) -> tuple[Copy, ...]:
        try:
            return self.ledger.copies(job)
        except VaultRefused:
            return ()

    def write(self, memory: int) -> None:
        self.writes += 1
        self.pages[memory].contents = self.writes

    def follow(self) -> None:
        for memory in self.ledger.closed():
            assert not self.pages[memory].open_by, "memory that somebody has open was closed"
            del self.pages[memory]
            self.owned.pop(memory, None)
            self.sealed.pop(memory, None)

    @rule(job=JOBS, holder=HOLDERS, pages=st.integers(1, 5))
    def allocate(self, job: str, holder: int, pages: int) -> None:
        try:
            grants = self.ledger.allocate(job, 9, pages * PAGE, holder, count=2)
        except VaultRefused:
            return
        self.follow()
        for grant in grants or ():
            self.take(grant, job, holder)

    @precondition(lambda self: self.owned)
    @rule(data=st.data(), step=STEPS, generation=st.integers(1, 3))
    def fill_and_seal(self, data: st.DataObject, step: int, generation: int) -> None:
        memory = data.draw(st.sampled_from(sorted(self.owned)))
        holder, page = self.owned[memory], self.pages[memory]
        self.ledger.begin(memory, holder)
        self.sealed.pop(memory, None)
        self.write(memory)
        copy = a_copy(job=page.job, step=step, generation=generation, rank=holder, num_bytes=page.capacity)
        try:
            self.ledger.seal(memory, holder, copy, b"")
        except VaultRefused:
            return
        self.sealed[memory] = copy
        assert copy in self.ledger.copies(page.job)

    @rule(job=JOBS, step=STEPS, generation=st.integers(1, 3), holder=HOLDERS, is_whole=st.booleans())
    def receive(self, job: str, step: int, generation: int, holder: int, *, is_whole: bool) -> None:
        copy = a_copy(job=job, step=step, generation=generation, rank=7, num_bytes=2 * PAGE)
        try:
            grant = self.ledger.receive(copy, holder)
        except VaultRefused:
            return
        self.follow()
        if grant is None:
            return
        self.take(grant, job, holder)
        if not is_whole:
            return  # owned and open until its connection ends
        self.ledger.deliver(grant.memory, holder, copy, b"")
        self.pages[grant.memory].open_by.remove(holder)
        del self.owned[grant.memory]
        self.sealed[grant.memory] = copy
        of_rank = [c for c in self.ledger.copies(job) if (c.rank, c.version.generation) == (7, generation)]
        assert copy in of_rank
        assert len(of_rank) <= 2

    @rule(data=st.data(), job=JOBS, holder=HOLDERS)
    def lend(self, data: st.DataObject, job: str, holder: int) -> None:
        copies = self.there(job)
        if not copies:
            return
        copy = data.draw(st.sampled_from(copies))
        loan = self.ledger.lend(copy, holder)
        self.pages[loan.memory].open_by.append(holder)
        self.loans.append((holder, loan, copy, self.pages[loan.memory].contents))

    @precondition(lambda self: self.loans)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        loan = data.draw(st.sampled_from(self.loans))
        self.loans.remove(loan)
        holder, lent, _, contents = loan
        is_same = self.pages[lent.memory].contents == contents
        self.pages[lent.memory].open_by.remove(holder)
        if self.ledger.give_back(lent.memory, lent.stamp, holder):
            assert is_same, "a reader was told that all is well with what was overwritten"
        self.follow()

    @rule(holder=HOLDERS)
    def leave(self, holder: int) -> None:
        self.ledger.leave(holder)
        for page in self.pages.values():
            page.open_by = [other for other in page.open_by if other != holder]
        self.owned = {memory: owner for memory, owner in self.owned.items() if owner != holder}
        self.loans = [loan for loan in self.loans if loan[0] != holder]
        self.follow()

    @rule(job=JOBS, generation=st.integers(1, 3))
    def retire(self, job: str, generation: int) -> None:
        try:
            self.ledger.retire(job, generation)
        except VaultRefused:
            return
        assert all(copy.version.generation >= generation for copy in self.ledger.copies(job))

    @rule(job=JOBS)
    def forget_or_admit(self, job: str) -> None:
        if self.ledger.secret(job) is None:
            self.ledger.admit(job, "s")
            return
        self.ledger.forget(job)
        self.follow()

    @invariant()
    def the_limit_holds(self) -> None:
        assert self.ledger.total_bytes <= LIMIT * PAGE
        assert self.ledger.total_bytes == sum(page.capacity for page in self.pages.values())

    @invariant()
    def what_is_there_was_sealed_and_can_be_lent(self) -> None:
        for job in ("j", "k"):
            for copy in self.there(job):
                assert copy in self.sealed.values()
                try:
                    loan = self.ledger.lend(copy, 99)
                except CopyGone:
                    raise AssertionError("the inventory lies") from None
                assert self.ledger.give_back(loan.memory, loan.stamp, 99)


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=50, stateful_step_count=30, deadline=None)
