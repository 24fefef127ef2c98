from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from varuna_runtime.agent.notices import Cancelled, Change, Hint, Notice
from varuna_runtime.agent.notices.book import Announcement, Book
from varuna_runtime.agent.notices.health import Health, pause_s

SPOT = Announcement(id="spot", detail="spot", left_s=100.0, most_s=120.0, stamp="a", believed_s=300.0)


def told(book: Book, now_s: float, *present: Announcement) -> tuple[Change, ...]:
    return book.update(present, now_s)


def test_what_stays_is_told_once() -> None:
    book = Book()
    assert told(book, 0.0) == ()
    assert told(book, 1.0, SPOT) == (Notice(seconds_left=100.0, detail="spot", id="spot"),)
    assert told(book, 2.0, replace(SPOT, left_s=99.0)) == ()
    assert told(book, 90.0, replace(SPOT, left_s=11.0)) == ()


def test_what_vanishes_is_cancelled_once() -> None:
    book = Book()
    told(book, 0.0, SPOT)
    assert [type(change) for change in told(book, 1.0)] == [Cancelled]
    assert told(book, 2.0) == ()


def test_another_deadline_is_another_notice() -> None:
    book = Book()
    told(book, 0.0, SPOT)
    moved = replace(SPOT, left_s=40.0, stamp="b")
    assert told(book, 10.0, moved) == (Notice(seconds_left=40.0, detail="spot", id="spot"),)


def test_what_has_no_time_of_its_own_is_urgent() -> None:
    (notice,) = told(Book(), 0.0, replace(SPOT, is_urgent=True))
    assert isinstance(notice, Notice)
    assert notice.is_urgent


def test_of_several_the_first_to_be_due_counts_and_then_the_next() -> None:
    book = Book()
    later = Announcement(id="reboot", detail="reboot", left_s=600.0)
    assert told(book, 0.0, later)[0] == Notice(seconds_left=600.0, detail="reboot", id="reboot")
    assert told(book, 1.0, later, SPOT)[0] == Notice(seconds_left=100.0, detail="spot", id="spot")
    assert told(book, 2.0, later) == (Notice(seconds_left=598.0, detail="reboot", id="reboot"),)


def test_a_hint_is_told_once_and_never_a_notice() -> None:
    book = Book()
    hint = Announcement(id="rebalance 1", detail="rebalance", is_hint=True)
    assert told(book, 0.0, hint) == (Hint(detail="rebalance"),)
    assert told(book, 1.0, hint) == ()
    assert told(book, 2.0) == ()
    assert told(book, 3.0, hint) == ()


def test_a_time_long_past_at_the_first_look_is_a_leftover() -> None:
    book = Book()
    stale = replace(SPOT, left_s=-1000.0)
    assert told(book, 0.0, stale) == ()
    assert told(book, 1.0, stale) == ()
    assert told(book, 2.0, replace(SPOT, left_s=60.0, stamp="b")) == (
        Notice(seconds_left=60.0, detail="spot", id="spot"),
    )


def test_a_time_just_past_at_the_first_look_is_due_now() -> None:
    assert told(Book(), 0.0, replace(SPOT, left_s=-20.0)) == (
        Notice(seconds_left=0.0, detail="spot", id="spot"),
    )


def test_a_clock_that_runs_ahead_hides_no_notice_that_comes_up_while_we_look() -> None:
    book = Book()
    told(book, 0.0)
    assert told(book, 1.0, replace(SPOT, left_s=-3600.0)) == (
        Notice(seconds_left=0.0, detail="spot", id="spot"),
    )


def test_a_clock_that_runs_behind_gives_no_absurd_time() -> None:
    assert told(Book(), 0.0, replace(SPOT, left_s=90_000.0))[0] == Notice(
        seconds_left=120.0, detail="spot", id="spot"
    )


def test_a_node_that_outlives_its_deadline_is_taken_back_in_the_end() -> None:
    book = Book()
    told(book, 0.0, SPOT)
    assert told(book, 399.0, SPOT) == ()
    assert [type(change) for change in told(book, 401.0, SPOT)] == [Cancelled]
    assert told(book, 500.0, SPOT) == ()


def test_what_has_started_cannot_be_taken_back() -> None:
    book = Book()
    event = Announcement(id="e", detail="Preempt", left_s=30.0, stamp="s")
    told(book, 0.0, event)
    started = replace(event, left_s=0.0, stamp="t", is_started=True)
    assert told(book, 5.0, started) == (Notice(seconds_left=0.0, detail="Preempt", id="e"),)
    assert told(book, 6.0) == ()
    assert told(book, 200.0) == ()
    assert [type(change) for change in told(book, 400.0)] == [Cancelled]


announcements = st.builds(
    Announcement,
    id=st.sampled_from("abc"),
    detail=st.just("d"),
    left_s=st.floats(-5000, 5000),
    stamp=st.sampled_from("xy"),
    is_hint=st.booleans(),
    is_started=st.booleans(),
    believed_s=st.sampled_from([300.0, float("inf")]),
)


@settings(deadline=None)
@given(st.lists(st.tuples(st.floats(0, 100), st.lists(announcements, max_size=3)), max_size=20))
def test_whatever_is_announced_a_cancel_follows_a_notice_and_no_time_is_absurd(
    looks: list[tuple[float, list[Announcement]]],
) -> None:
    book, now_s, is_noticed = Book(), 0.0, False
    for passed_s, present in looks:
        now_s += passed_s
        for change in book.update(present, now_s):
            if isinstance(change, Notice):
                assert 0.0 <= change.seconds_left <= 3600.0 + 1e-6  # rounding of `now_s + left_s - now_s`
                is_noticed = True
            elif isinstance(change, Cancelled):
                assert is_noticed
                is_noticed = False


def test_an_outage_is_told_with_its_first_reason_and_its_end() -> None:
    health = Health("aws")
    assert health.state == "starting"
    assert health.answered()
    assert not health.answered()
    assert [health.failed("a"), health.failed("b"), health.failed("c"), health.failed("d")] == [0, 0, 1, 0]
    assert health.state == "unavailable, because c"
    assert health.answered()
    assert health.state == "aws"


def test_a_source_that_never_answered_is_unavailable_at_once() -> None:
    health = Health("aws")
    assert health.failed("no answer in 2 s")
    assert health.state == "unavailable, because no answer in 2 s"


def test_questions_become_rarer_up_to_a_cap() -> None:
    assert [pause_s(n, 2.0, 10.0) for n in (0, 1, 2, 3, 1000)] == [2.0, 4.0, 8.0, 10.0, 10.0]
