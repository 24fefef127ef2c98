"""Both kinds of recordings become the same record; anything else is refused by its line."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from varuna_manager.traces import Change, Recording, parse
from varuna_runtime.spec.errors import InvalidInput

RECORDINGS = Path(__file__).parents[2] / "data" / "traces"
EVENTS = "0,add,a\n0,add,b\n60000,remove,a\n60000,remove,b\n60000,add,c\n90000,add,a\n"


def counts(*rows: tuple[str, int]) -> str:
    return "".join(f"2021-12-10, {at}, {count}\n" for at, count in rows)


def test_events_that_share_a_time_are_one_change() -> None:
    assert parse(EVENTS, source="f").changes == (
        Change(at_s=0.0, joined=("a", "b")),
        Change(at_s=60.0, joined=("c",), left=("a", "b")),
        Change(at_s=90.0, joined=("a",)),
    )


def test_what_is_offered_at_a_time_comes_longest_present_first() -> None:
    recording = parse(EVENTS, source="f")
    assert [recording.offered(t) for t in (0, 59.9, 60, 1000)] == [("a", "b"), ("a", "b"), ("c",), ("c", "a")]


def test_a_recording_tells_when_a_node_leaves_and_when_anything_changes_next() -> None:
    recording = parse(EVENTS, source="f")
    assert recording.leaves_at("a", 0) == 60
    assert recording.leaves_at("a", 60) is None
    assert [recording.next_change(t) for t in (0, 60, 90)] == [60, 90, None]


def test_counts_become_named_nodes_and_a_fall_takes_them_at_once() -> None:
    recording = parse(counts(("13:00:00", 3), ("13:01:00", 3), ("13:02:00", 1), ("13:03:00", 2)), source="f")
    first, fall, rise = recording.changes
    assert (first.at_s, first.joined) == (0.0, ("node1", "node2", "node3"))
    assert (fall.at_s, len(fall.left)) == (120.0, 2)
    assert (rise.at_s, rise.joined) == (180.0, ("node4",)), "a name is never given twice"
    assert recording.length_s == 180


def test_a_count_written_ahead_is_taken_back_by_a_later_line() -> None:
    recording = parse(counts(("13:00:00", 8), ("13:01:00", 8), ("13:02:00", 8), ("13:01:00", 5)), source="f")
    assert [len(recording.offered(t)) for t in (0, 60, 120)] == [8, 5, 5]


def test_counts_may_cross_midnight_and_start_at_none() -> None:
    text = "2021-12-31, 23:59:00, 0\n2022-01-01, 00:01:00, 2\n"
    assert [c.at_s for c in parse(text, source="f").changes] == [0.0, 120.0]


def test_a_fall_favours_neither_old_nor_young_nodes() -> None:
    text = counts(("13:00:00", 100), ("13:01:00", 50))
    left = {int(name.removeprefix("node")) for name in parse(text, source="f").changes[1].left}
    assert 15 <= sum(number <= 50 for number in left) <= 35


def test_a_part_begins_with_what_was_offered_then_and_counts_from_there() -> None:
    part = parse(EVENTS, source="f").between(30, 80)
    assert part.changes == (
        Change(at_s=0.0, joined=("a", "b")),
        Change(at_s=30.0, joined=("c",), left=("a", "b")),
    )
    assert part.length_s == 50


@pytest.mark.parametrize(("start_s", "end_s"), [(-1, 5), (5, 5), (6, 5)])
def test_a_part_that_is_none_is_refused(start_s: float, end_s: float) -> None:
    with pytest.raises(InvalidInput, match="0 <= start < end"):
        parse(EVENTS, source="f").between(start_s, end_s)


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "f: no lines"),
        ("\n  \n", "f: no lines"),
        ("time,node\n0,add,a\n", r"f: line 1: seen 'time,node', wanted `milliseconds"),
        ("0,add,a\n2021-12-10, 13:00:00, 4\n", r"f: line 2: .* as in the lines before"),
        ("2021-12-10, 13:00:00, 4\n\n0,add,a\n", r"f: line 3: .* as in the lines before"),
        ("5,add,a\n4,add,b\n", "f: line 2: .* a time of at least 5"),
        ("0,add,a\n9,add,a\n", "f: line 2: .* a to be absent before"),
        ("0,remove,a\n", "f: line 1: .* a to be present before"),
        ("0,add,a\n9,remove,a\n9,add,a\n", "f: line 3: .* one change of a at that time"),
        ("0,add,../etc\n", "f: line 1"),
        ("0,add,a,b\n", "f: line 1"),
        ("-1,add,a\n", "f: line 1"),
        ("2021-02-30, 13:00:00, 4\n", "f: line 1: .* a date that exists"),
        ("2021-13-01, 13:00:00, 4\n", "f: line 1: .* a date that exists"),
        ("0000-01-01, 13:00:00, 4\n", "f: line 1: .* a date that exists"),
        ("2021-12-10, 24:00:00, 4\n", "f: line 1: .* a time of day"),
        ("2021-12-10, 13:00:00, 4000000\n", "f: line 1: .* a count of at most"),
        ("2021-12-10, 13:00:00, -4\n", "f: line 1"),
    ],
)
def test_anything_else_is_refused_by_its_line(text: str, complaint: str) -> None:
    with pytest.raises(InvalidInput, match=complaint):
        parse(text, source="f")


@pytest.mark.parametrize(
    ("name", "first", "most"), [("aws-p3-us-east.csv", 18, 32), ("gcp-v100-us-east1c.txt", 80, 80)]
)
def test_real_recordings_are_read(name: str, first: int, most: int) -> None:
    recording = parse((RECORDINGS / name).read_text(), source=name)
    sizes = [len(recording.offered(change.at_s)) for change in recording.changes]
    assert (sizes[0], max(sizes)) == (first, most)
    assert max(len(change.left) for change in recording.changes) >= 5, "correlated losses are kept"


@given(st.lists(st.tuples(st.integers(0, 10_000), st.integers(0, 40)), min_size=1, max_size=40))
def test_at_the_time_of_a_kept_count_that_many_are_offered(rows: list[tuple[int, int]]) -> None:
    clock = [f"{s // 3600:02}:{s // 60 % 60:02}:{s % 60:02}" for s, _ in rows]
    text = counts(*zip(clock, (count for _, count in rows), strict=True))
    recording = parse(text, source="f")
    assert len(recording.offered(recording.length_s)) == rows[-1][1]
    assert _is_consistent(recording)


def _is_consistent(recording: Recording) -> bool:
    """Nobody comes twice, nobody goes who is not there, and time only goes forward."""
    present: set[str] = set()
    for change in recording.changes:
        if not present >= set(change.left) or present & set(change.joined):
            return False
        present = present - set(change.left) | set(change.joined)
    times = [change.at_s for change in recording.changes]
    return times == sorted(set(times))
