import pytest

from tests.support.vaults import a_copy
from varuna_runtime.spec.errors import CopyGone, VaultRefused
from varuna_runtime.vault.ledger import Grant, Ledger

PAGE = 4096
WORKER, OTHER = 1, 2


def serving(*, pages: int = 100, jobs: tuple[str, ...] = ("j",)) -> Ledger:
    ledger = Ledger(pages * PAGE)
    for job in jobs:
        ledger.admit(job, "secret")
    return ledger


def granted(ledger: Ledger, pages: float = 1, *, job: str = "j", generation: int = 1) -> Grant:
    """One memory for WORKER."""
    grants = ledger.allocate(job, generation, int(pages * PAGE), WORKER, count=1)
    assert grants is not None
    return grants[0]


def freed(ledger: Ledger, pages: float = 1, *, job: str = "j") -> int:
    grant = granted(ledger, pages, job=job)
    ledger.leave(WORKER)
    return grant.memory


def test_what_is_sealed_stays_when_its_worker_leaves() -> None:
    ledger, copy = serving(), a_copy()
    ledger.seal(granted(ledger).memory, WORKER, copy, b"record")
    ledger.leave(WORKER)
    assert ledger.copies("j") == (copy,)
    assert ledger.lend(copy, OTHER).record == b"record"


def test_what_is_half_filled_is_worth_nothing_when_its_worker_leaves() -> None:
    ledger, copy = serving(), a_copy()
    memory = granted(ledger).memory
    ledger.seal(memory, WORKER, copy, b"")
    ledger.begin(memory, WORKER)
    ledger.leave(WORKER)
    assert ledger.copies("j") == ()
    assert granted(ledger).memory == memory


def test_only_its_owner_fills_a_memory() -> None:
    ledger = serving()
    memory = granted(ledger).memory
    for holder in (OTHER, WORKER):
        if holder == WORKER:
            ledger.leave(WORKER)
        with pytest.raises(VaultRefused):
            ledger.begin(memory, holder)
        with pytest.raises(VaultRefused):
            ledger.seal(memory, holder, a_copy(), b"")


@pytest.mark.parametrize(("wanted", "is_reused"), [(2, True), (3, True), (1.9, True), (1, False), (4, False)])
def test_freed_memory_is_handed_out_again_if_it_fits(wanted: float, *, is_reused: bool) -> None:
    ledger = serving()
    old = freed(ledger, 3)
    grant = granted(ledger, wanted)
    assert (grant.memory == old, grant.is_new) == (is_reused, not is_reused)


def test_the_tightest_fit_is_taken() -> None:
    ledger = serving()
    large, small = granted(ledger, 11), granted(ledger, 10)
    ledger.leave(WORKER)
    assert granted(ledger, 9).memory == small.memory
    assert granted(ledger, 9).memory == large.memory


def test_memory_is_never_handed_to_another_job() -> None:
    ledger = serving(jobs=("j", "k"))
    old = freed(ledger)
    assert granted(ledger, job="k").memory != old


def test_free_memory_makes_room_and_copies_never_do() -> None:
    ledger = serving(pages=10)
    ledger.seal(granted(ledger, 4).memory, WORKER, a_copy(), b"")
    free = granted(ledger, 4).memory
    ledger.leave(WORKER)
    assert ledger.allocate("j", 1, 7 * PAGE, WORKER, count=1) is None
    assert ledger.closed() == ()
    assert granted(ledger, 2).is_new
    assert ledger.closed() == ()
    assert granted(ledger, 1).is_new
    assert ledger.closed() == (free,)
    assert ledger.copies("j") == (a_copy(),)


def test_both_buffers_are_given_or_none() -> None:
    ledger = serving(pages=3)
    assert ledger.allocate("j", 1, 2 * PAGE, WORKER, count=2) is None
    assert ledger.total_bytes == 0
    assert len(ledger.allocate("j", 1, 1 * PAGE, WORKER, count=2) or ()) == 2


def test_nothing_is_lent_that_is_not_there() -> None:
    ledger = serving()
    with pytest.raises(CopyGone):
        ledger.lend(a_copy(), OTHER)


def test_a_lent_memory_is_used_for_nothing_else_until_it_is_back() -> None:
    ledger, copy = serving(), a_copy()
    ledger.seal(granted(ledger).memory, WORKER, copy, b"")
    loan = ledger.lend(copy, OTHER)
    ledger.leave(WORKER)
    ledger.retire("j", 2)
    assert granted(ledger, generation=2).memory != loan.memory
    assert not ledger.give_back(loan.memory, loan.stamp, OTHER)
    assert granted(ledger, generation=2).memory == loan.memory


def test_a_reader_learns_that_another_copy_was_sealed_over_its_own() -> None:
    ledger, copy = serving(), a_copy()
    memory = granted(ledger).memory
    ledger.seal(memory, WORKER, copy, b"")
    torn = ledger.lend(copy, OTHER)
    ledger.begin(memory, WORKER)
    ledger.seal(memory, WORKER, copy, b"")
    whole = ledger.lend(copy, OTHER)
    assert not ledger.give_back(torn.memory, torn.stamp, OTHER)
    assert ledger.give_back(whole.memory, whole.stamp, OTHER)
    with pytest.raises(VaultRefused):
        ledger.give_back(whole.memory, whole.stamp, OTHER)


def test_retired_generations_are_dropped_and_refused() -> None:
    ledger = serving()
    memory = granted(ledger).memory
    ledger.seal(memory, WORKER, a_copy(generation=1), b"")
    ledger.retire("j", 2)
    ledger.retire("j", 1)  # told late
    assert ledger.copies("j") == ()
    for attempt in (
        lambda: ledger.seal(memory, WORKER, a_copy(generation=1), b""),
        lambda: granted(ledger, generation=1),
        lambda: ledger.receive(a_copy(generation=1), OTHER),
    ):
        with pytest.raises(VaultRefused, match="retired"):
            attempt()
    assert granted(ledger, generation=2)


def test_a_forgotten_job_is_gone_with_its_memory_as_soon_as_nobody_has_it_open() -> None:
    ledger, copy = serving(), a_copy()
    free = granted(ledger, 5).memory
    ledger.leave(WORKER)
    memory = granted(ledger).memory
    ledger.seal(memory, WORKER, copy, b"")
    ledger.lend(copy, OTHER)
    ledger.forget("j")
    assert ledger.closed() == (free,)
    assert ledger.held_jobs() == ()
    with pytest.raises(VaultRefused, match="not served"):
        ledger.copies("j")
    ledger.leave(WORKER)
    assert ledger.closed() == ()
    ledger.leave(OTHER)
    assert ledger.closed() == (memory,)


def received(ledger: Ledger, step: int, holder: int = OTHER) -> int:
    copy = a_copy(step=step)
    grant = ledger.receive(copy, holder)
    assert grant is not None
    ledger.deliver(grant.memory, holder, copy, b"")
    return grant.memory


def test_of_what_others_send_of_a_rank_the_newest_two_stay_in_two_memories() -> None:
    ledger = serving(pages=2)
    memories = [received(ledger, step) for step in (1, 2, 3, 4)]
    assert len(set(memories)) == 2
    assert [copy.version.step for copy in ledger.copies("j")] == [3, 4]


def test_while_a_copy_comes_in_the_one_before_it_stays() -> None:
    ledger = serving(pages=2)
    for step in (1, 2):
        received(ledger, step)
    assert ledger.receive(a_copy(step=3), OTHER) is not None
    assert [copy.version.step for copy in ledger.copies("j")] == [2]
    ledger.leave(OTHER)  # it broke off
    assert [copy.version.step for copy in ledger.copies("j")] == [2]
    received(ledger, 4)
    assert [copy.version.step for copy in ledger.copies("j")] == [2, 4]


def test_a_worker_s_own_copies_do_not_give_way_to_what_others_send() -> None:
    ledger = serving()
    for step in (1, 2):
        ledger.seal(granted(ledger).memory, WORKER, a_copy(step=step), b"")
    received(ledger, 3)
    assert [copy.version.step for copy in ledger.copies("j")] == [1, 2, 3]


def test_a_copy_that_is_sent_twice_is_there_once() -> None:
    ledger = serving()
    received(ledger, 1)
    received(ledger, 1)
    assert ledger.copies("j") == (a_copy(step=1),)


@pytest.mark.parametrize("copy", [a_copy(num_bytes=PAGE + 1), a_copy(num_bytes=-1), a_copy(job="k")])
def test_a_copy_that_does_not_fit_its_memory_is_refused(copy: object) -> None:
    ledger = serving(jobs=("j", "k"))
    with pytest.raises(VaultRefused, match="do not belong"):
        ledger.seal(granted(ledger).memory, WORKER, copy, b"")  # type: ignore[arg-type]


def test_the_jobs_that_are_held_are_told() -> None:
    ledger = serving(jobs=("k", "j"))
    assert ledger.held_jobs() == ()
    for job in ("k", "j"):
        ledger.seal(granted(ledger, job=job).memory, WORKER, a_copy(job=job), b"")
    assert ledger.held_jobs() == ("j", "k")
    ledger.retire("j", 2)
    assert ledger.held_jobs() == ("k",)
