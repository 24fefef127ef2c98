"""What a pool holds of what a recording offers."""

from tests.support.whatif import joins, recording
from varuna_manager.whatif.lending import lent, moments


def test_a_pool_holds_no_more_than_it_may_and_replaces_what_it_loses() -> None:
    pool = lent(recording(*joins(3), "10,remove,n0", "20,add,n7", "30,remove,n7"), 2)
    assert [(c.at_s, c.joined, c.left) for c in pool.changes] == [
        (0.0, ("n0", "n1"), ()),
        (10.0, ("n2",), ("n0",)),
    ]


def test_a_pool_with_room_for_all_is_as_recorded() -> None:
    whole = recording(*joins(3), "10,remove,n0", "20,add,n0")
    assert lent(whole, 3) == whole


def test_moments_cover_the_whole_time_also_before_the_first_node() -> None:
    found = moments(recording("5,add,a", "8,add,b"), 20.0)
    assert [(m.start_s, m.end_s, m.nodes) for m in found] == [
        (0.0, 5.0, ()),
        (5.0, 8.0, ("a",)),
        (8.0, 20.0, ("a", "b")),
    ]
